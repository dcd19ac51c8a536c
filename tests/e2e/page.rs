//! The page of `prun topo --html` in a real browser: every link can be pointed at and says what the model says, there
//! are as many as the model has, and no label lies over another.

use std::path::{Path, PathBuf};
use std::process::Command;

use tests::{Scratch, built};

/// Runs in the page: points at every link, reads the tip, and compares boxes of labels. The result becomes the title.
const CHECK: &str = r#"<script>
addEventListener("load", () => {
  const wrong = [], tip = document.getElementById("tip");
  let reached = 0;
  for (const group of document.querySelectorAll("g.link")) {
    const path = group.querySelector("path"), length = path.getTotalLength(), frame = path.getScreenCTM();
    let hit = false;
    for (let step = 1; step < 40 && !hit; step++) {
      const point = path.getPointAtLength(length * step / 40).matrixTransform(frame);
      const below = document.elementFromPoint(point.x, point.y);
      if (!below || below.closest("g.link") !== group) continue;
      below.dispatchEvent(new MouseEvent("mousemove", {bubbles: true, clientX: point.x, clientY: point.y}));
      hit = !tip.hidden && tip.textContent === group.dataset.tip && group.classList.contains("hot");
    }
    if (hit) reached++; else wrong.push("cannot point at " + group.id);
    group.dispatchEvent(new MouseEvent("mouseleave"));
    if (!tip.hidden) wrong.push("tip stays for " + group.id);
  }
  const labels = [...document.querySelectorAll("svg text")].map(text => [text.textContent, text.getBoundingClientRect()]);
  labels.forEach(([name, one], at) => labels.slice(at + 1).forEach(([other, two]) => {
    if (one.left < two.right - 0.5 && two.left < one.right - 0.5 && one.top < two.bottom - 2.5 && two.top < one.bottom - 2.5)
      wrong.push(name + " lies over " + other);
  }));
  document.querySelectorAll("svg g rect").forEach(rect => {
    const frame = rect.getBoundingClientRect();
    rect.parentNode.querySelectorAll("text").forEach(text => {
      if (text.getBoundingClientRect().right > frame.right + 0.5) wrong.push(text.textContent + " leaves its box");
    });
  });
  document.title = "CHECKED " + reached + " " + document.querySelectorAll("g.gpu").length + " " + (wrong.join("; ") || "fine");
});
</script>"#;

fn chromium() -> Option<&'static str> {
    ["chromium", "chromium-browser", "google-chrome"]
        .into_iter()
        .find(|name| Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success()))
}

/// The title that the page has once it was checked.
fn checked(page: &Path, browser: &str) -> String {
    let html = std::fs::read_to_string(page).expect("prun wrote it");
    let page = page.with_extension("checked.html");
    std::fs::write(&page, html.replace("</body>", &format!("{CHECK}</body>"))).expect("a writable scratch directory");
    let profile = page.with_extension("profile");
    let output = Command::new(browser)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--window-size=2200,1400",
            "--virtual-time-budget=2000",
            "--dump-dom",
        ])
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg(format!("file://{}", page.display()))
        .output()
        .expect("the browser starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.split("<title>").nth(1).and_then(|rest| rest.split("</title>").next()).unwrap_or("no title").to_owned()
}

#[test]
fn every_link_can_be_pointed_at_and_no_label_lies_over_another() {
    let Some(browser) = chromium() else {
        println!("SKIP: needs chromium");
        return;
    };
    let scratch = Scratch::new();
    let nodes: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("nodes");
    for (machine, gpus) in [("hgx-h200", 8), ("dgx-1", 8), ("two-sockets-4gpu", 4), ("no-numa-directory", 2)] {
        let page = scratch.join(format!("{machine}.html"));
        let made = Command::new(built("prun"))
            .args(["topo", "--node"])
            .arg(nodes.join(format!("{machine}.toml")))
            .arg("--html")
            .arg(&page)
            .output();
        assert!(made.expect("prun is built").status.success(), "{machine}");
        let links = gpus * (gpus - 1) / 2;
        assert_eq!(checked(&page, browser), format!("CHECKED {links} {gpus} fine"), "{machine}");
    }
}

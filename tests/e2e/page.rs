//! The page of `prun topo --html` in a real browser: every link can be pointed at and then says what the model says
//! (`prun topo --json`), there are as many as the model has, and no label lies over another.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tests::{Scratch, built};

/// Runs in the page: points at every link, reads the tip, and compares boxes of labels. The result becomes the title.
const CHECK: &str = r#"<script>
addEventListener("load", () => {
  const wrong = [], tip = document.getElementById("tip");
  const seen = {};
  let reached = 0;
  for (const group of document.querySelectorAll("g.link")) {
    const path = group.querySelector("path"), length = path.getTotalLength();
    let hit = false;
    for (let step = 1; step < 40 && !hit; step++) {
      const place = () => path.getPointAtLength(length * step / 40).matrixTransform(path.getScreenCTM());
      let point = place();
      // A machine of many GPUs is wider than the window: what is pointed at is scrolled into view first, as a user would.
      if (point.x < 4 || point.x > innerWidth - 4) document.querySelector(".wide").scrollLeft += point.x - innerWidth / 2;
      if (point.y < 4 || point.y > innerHeight - 4) scrollBy(0, point.y - innerHeight / 2);
      point = place();
      const below = document.elementFromPoint(point.x, point.y);
      if (!below || below.closest("g.link") !== group) continue;
      below.dispatchEvent(new MouseEvent("mousemove", {bubbles: true, clientX: point.x, clientY: point.y}));
      hit = !tip.hidden && tip.textContent === group.dataset.tip && group.classList.contains("hot");
      if (hit) seen[group.id] = tip.textContent;
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
  const found = document.createElement("pre");
  found.id = "seen";
  found.textContent = JSON.stringify(seen);
  document.body.append(found);
  document.title = "CHECKED " + reached + " " + document.querySelectorAll("g.gpu").length + " " + (wrong.join("; ") || "fine");
});
</script>"#;

fn chromium() -> Option<&'static str> {
    ["chromium", "chromium-browser", "google-chrome"]
        .into_iter()
        .find(|name| Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success()))
}

/// The title that the page has once it was checked, and what each link said when it was pointed at.
fn checked(page: &Path, browser: &str) -> (String, Value) {
    let html = std::fs::read_to_string(page).expect("prun wrote it");
    let page = page.with_extension("checked.html");
    std::fs::write(&page, html.replace("</body>", &format!("{CHECK}</body>"))).expect("a writable scratch directory");
    let profile = page.with_extension("profile");
    let output = Command::new(browser)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--window-size=1200,900",
            "--virtual-time-budget=2000",
            "--dump-dom",
        ])
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg(format!("file://{}", page.display()))
        .output()
        .expect("the browser starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let between = |begin: &str, end: &str| text.split(begin).nth(1).and_then(|rest| rest.split(end).next());
    let seen = between("<pre id=\"seen\">", "</pre>").unwrap_or_default();
    let seen = ["&lt;", "<", "&gt;", ">", "&amp;", "&"]
        .chunks(2)
        .fold(seen.to_owned(), |text, pair| text.replace(pair[0], pair[1]));
    let title = between("<title>", "</title>").unwrap_or("no title").to_owned();
    (title, serde_json::from_str(&seen).unwrap_or_default())
}

/// What the page must say of a link, from the model and what the doctor says of it: its kind, its figures, its health, its
/// ends' PCIe links and what was counted there.
fn expected(model: &Value, doctor: &Value, link: &Value) -> Vec<String> {
    let mut lines = vec![format!("{} – {}: {} (", text(&link["a"]), text(&link["b"]), text(&link["kind"]))];
    if let (Some(there), Some(back)) = (link["gb-s"].as_f64(), link["back-gb-s"].as_f64()) {
        lines.push(format!("measured {there:.0} GB/s there, {back:.0} GB/s back"));
    }
    if let Some(both) = link["both-gb-s"].as_f64() {
        lines.push(format!("{both:.0} GB/s each way with both at once"));
    }
    if let Some(us) = link["us"].as_f64() {
        lines.push(format!("{us:.1} µs one way"));
    }
    for way in link["way"].as_array().into_iter().flatten() {
        lines.push(format!("{:.0} both at once", way["both-gb-s"].as_f64().expect("a figure")));
    }
    if link["peer-proven"] == true {
        lines.push("peer access proven".into());
    }
    let place = format!("{}-{}", text(&link["a"]), text(&link["b"]));
    if let Some(health) = list(&doctor["health"]).find(|health| health["place"] == place.as_str()) {
        lines.push(format!("health {} of 100", health["score"]));
    }
    for end in ["a", "b"] {
        let gpu = list(&model["gpu"]).find(|gpu| format!("GPU{}", gpu["index"]) == text(&link[end])).expect("a GPU");
        let device = list(&model["device"]).find(|device| device["address"] == gpu["address"]);
        if let Some(width) = device.and_then(|device| device["link"]["width"].as_u64()) {
            let now = format!("{}: PCIe now Gen", text(&link[end]));
            lines.push(now);
            lines.push(format!(" x{width}, at best "));
        }
        if let Some(counts) = device.and_then(|device| device["aer"]["correctable"].as_object()) {
            let total: u64 = counts.values().filter_map(Value::as_u64).sum();
            lines.push(format!("{}: {total} correctable", text(&link[end])));
        }
        if let Some(replays) = gpu["state"]["replays"].as_u64() {
            lines.push(format!("{replays} replays"));
        }
    }
    lines
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// The machine with errors counted at GPU0, whose link has lost half of its lanes.
fn with_counters(node: &str) -> String {
    let counters = "width = 8\nmax-speed = \"16 GT/s\"\nmax-width = 16\n\n[device.aer.correctable]\nBadTLP = 17\nRxErr = 5\n\n[device.aer.fatal]\nDLP = 0\n";
    let (before, after) = node.split_once("address = \"0000:1b:00.0\"\nkind").expect("GPU0's device");
    let link = "width = 16\nmax-speed = \"16 GT/s\"\nmax-width = 16\n";
    let changed = after.replacen(link, counters, 1);
    let before = before.replacen("memory-mib = 49152\n", "memory-mib = 49152\n\n[gpu.state]\nreplays = 3\n", 1);
    assert!(changed.contains("BadTLP") && before.contains("replays"), "the recorded machine has changed");
    format!("{before}address = \"0000:1b:00.0\"\nkind{changed}")
}

#[test]
fn every_link_can_be_pointed_at_and_no_label_lies_over_another() {
    let Some(browser) = chromium() else {
        println!("SKIP: needs chromium");
        return;
    };
    let scratch = Scratch::new();
    let nodes: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("nodes");
    let machines = [
        "hgx-h200",
        "dgx-1",
        "dgx-a100",
        "power9-6gpu",
        "pcie-switches",
        "two-sockets-4gpu",
        "no-numa-directory",
        "two-h200-vm",
    ];
    for machine in machines {
        let mut node = fs::read_to_string(nodes.join(format!("{machine}.toml"))).expect("a recorded machine");
        if machine == "two-sockets-4gpu" {
            node = with_counters(&node);
        }
        let node = scratch.file(&format!("{machine}.toml"), node.as_bytes(), 0o644);
        let page = scratch.join(format!("{machine}.html"));
        let topo = |options: &[&str]| {
            let output = Command::new(built("prun"))
                .args(["topo", "--node"])
                .arg(&node)
                .args(options)
                .output()
                .expect("prun is built");
            assert!(output.status.success(), "{machine}");
            output.stdout
        };
        let doctor = Command::new(built("prun")).args(["doctor", "--json", "--node"]).arg(&node).output();
        let doctor: Value = serde_json::from_slice(&doctor.expect("prun is built").stdout).expect("JSON");
        let nccl = scratch.file("nccl.log", b"vm:1:2 [0] NCCL INFO Channel 00/01 : 0 1\n", 0o644);
        topo(&["--html", page.to_str().expect("text"), "--nccl", nccl.to_str().expect("text")]);
        let model: Value = serde_json::from_slice(&topo(&["--json"])).expect("JSON");
        let between = |link: &&Value| text(&link["b"]).starts_with("GPU");
        let links: Vec<&Value> = list(&model["link"]).filter(between).collect();
        let gpus = list(&model["gpu"]).count();
        assert_eq!(links.len(), gpus * (gpus - 1) / 2, "{machine}");
        let (title, seen) = checked(&page, browser);
        assert_eq!(title, format!("CHECKED {} {gpus} fine", links.len()), "{machine}");
        for link in links {
            let said = text(&seen[format!("{}-{}", text(&link["a"]), text(&link["b"]))]);
            for part in expected(&model, &doctor, link) {
                assert!(said.contains(&part), "{machine}: {part} is not in\n{said}");
            }
        }
        let said = text(&seen["GPU0-GPU1"]);
        if machine == "two-sockets-4gpu" {
            assert!(said.contains("GPU0: 22 correctable, 0 fatal, 3 replays") && said.contains("health 70"), "{said}");
        }
        assert!(text(&seen["GPU0-GPU1"]).contains("on NCCL's ring: 1 of 1 channels"), "{machine}");
    }
}

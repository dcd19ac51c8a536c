//! A drawing as one page that needs nothing else: no network, no other file.

use std::fmt::Write;

use super::layout::Drawing;
use super::svg::{escaped, svg};

const SCRIPT: &str = r#"
const tip = document.getElementById("tip");
function show(group, x, y) {
  document.querySelectorAll(".hot").forEach(hot => hot.classList.remove("hot"));
  group.classList.add("hot");
  tip.textContent = group.dataset.tip;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = Math.max(4, Math.min(x + 14, innerWidth - box.width - 8)) + scrollX + "px";
  tip.style.top = Math.max(4, Math.min(y + 14, innerHeight - box.height - 8)) + scrollY + "px";
}
function hide() {
  tip.hidden = true;
  document.querySelectorAll(".hot").forEach(hot => hot.classList.remove("hot"));
}
for (const group of document.querySelectorAll("g[data-tip]")) {
  group.setAttribute("tabindex", "0");
  group.querySelectorAll(":scope > title").forEach(title => title.remove());
  group.addEventListener("mousemove", event => show(group, event.clientX, event.clientY));
  group.addEventListener("mouseleave", hide);
  group.addEventListener("focus", () => { const box = group.getBoundingClientRect(); show(group, box.right, box.top); });
  group.addEventListener("blur", hide);
}
for (const row of document.querySelectorAll("tr[data-id]")) {
  const group = document.getElementById(row.dataset.id);
  row.addEventListener("mouseenter", () => group && group.classList.add("hot"));
  row.addEventListener("mouseleave", () => group && group.classList.remove("hot"));
}
"#;

/// The page.
pub fn html(drawing: &Drawing) -> String {
    let mut text = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>{} – prun topo</title>\n<style>body{{margin:0;font:14px system-ui,sans-serif;color:#1f2328}}\
         #tip{{position:absolute;white-space:pre-line;background:#1f2328;color:#fff;padding:8px 10px;border-radius:6px;font-size:12px;pointer-events:none;max-width:340px}}\
         .wide{{overflow-x:auto}}table{{border-collapse:collapse;margin:8px 24px 32px}}td,th{{padding:3px 14px 3px 0;text-align:left;border-bottom:1px solid #eaeef2;font-size:13px}}\
         g[data-tip]:focus{{outline:none}}g.hot rect{{stroke:#2563eb;stroke-width:2}}</style></head>\n<body>\n<div class=\"wide\">\n",
        escaped(&drawing.title[0])
    );
    text.push_str(&svg(drawing));
    text.push_str("</div>\n<div id=\"tip\" hidden></div>\n");
    if !drawing.edges.is_empty() {
        text.push_str("<table id=\"links\"><tr><th>link</th><th>kind</th><th>what is known</th></tr>\n");
        for edge in &drawing.edges {
            let rest = edge.tip[1..].join("; ");
            let _ = writeln!(
                text,
                "<tr data-id=\"{0}\"><td>{0}</td><td>{1}</td><td>{2}</td></tr>",
                escaped(&edge.id),
                edge.kind,
                escaped(&rest)
            );
        }
        text.push_str("</table>\n");
    }
    if !drawing.nccl_rings.is_empty() {
        text.push_str("<table id=\"nccl\"><tr><th>NCCL's rings</th><th>channels</th></tr>\n");
        for (ring, users) in &drawing.nccl_rings {
            let order = ring.iter().map(usize::to_string).collect::<Vec<_>>().join(" → ");
            let _ = writeln!(text, "<tr><td>{order} → {}</td><td>{}</td></tr>", ring[0], users.len());
        }
        text.push_str("</table>\n");
    }
    let _ = write!(text, "<script>{SCRIPT}</script>\n</body></html>\n");
    text
}

#[cfg(test)]
mod tests {
    use super::super::layout::layout;
    use super::*;
    use crate::topology::tests_support::two_sockets;

    #[test]
    fn the_page_needs_nothing_from_elsewhere() {
        let page = html(&layout(&two_sockets(), &[vec![0, 1, 3, 2]]));
        let outside = page.replace("http://www.w3.org/2000/svg", "");
        assert!(!outside.contains("http") && !outside.contains("src=") && !outside.contains("@import"));
        assert_eq!(page.matches("<tr data-id=").count(), 6);
        assert!(page.contains("0 → 1 → 3 → 2"));
    }
}

//! A drawing as SVG.

use std::fmt::Write;

use super::layout::{Drawing, colour};
use crate::topology::LinkKind;

/// The style that the picture and the page share.
pub const STYLE: &str = "text{font:12px system-ui,sans-serif;fill:#1f2328}.title{font-size:18px;font-weight:600}\
.small{font-size:11px;fill:#57606a}.bold{font-weight:600;font-size:13px}.numa rect{fill:#f6f8fa;stroke:#d0d7de}\
.gpu rect{fill:#fff;stroke:#57606a;stroke-width:1.2}.nic rect{fill:#eef4ff;stroke:#9db5dd}\
.bridge rect{fill:#eaeef2;stroke:none}.bridge text{font-size:11px;font-weight:400;fill:#57606a}\
.edge{fill:none;opacity:.85}.ring{fill:none;stroke:#2563eb;stroke-width:1.4;stroke-dasharray:5 4}.nccl{fill:none;stroke:#a21caf;stroke-width:1.4;stroke-dasharray:1.5 4;stroke-linecap:round}\
.hot .edge{opacity:1;stroke-width:6}";

/// The whole picture.
pub fn svg(drawing: &Drawing) -> String {
    let mut text = String::new();
    let _ = write!(
        text,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{w:.0}\" height=\"{h:.0}\" viewBox=\"0 0 {w:.0} {h:.0}\" role=\"img\">\n<style>{STYLE}</style>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
        w = drawing.width,
        h = drawing.height,
    );
    let _ = writeln!(text, "<text class=\"title\" x=\"24\" y=\"30\">{}</text>", escaped(&drawing.title[0]));
    let _ = writeln!(text, "<text class=\"small\" x=\"24\" y=\"50\">{}</text>", escaped(&drawing.title[1]));
    for its in &drawing.boxes {
        let [x, y, width, height] = its.place;
        let _ = writeln!(
            text,
            "<g class=\"{}\" id=\"{}\" data-tip=\"{}\">",
            its.kind,
            escaped(&its.id),
            escaped(&its.tip.join("\n"))
        );
        let _ = writeln!(text, "<title>{}</title>", escaped(&its.tip.join("\n")));
        let _ =
            writeln!(text, "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" rx=\"6\"/>");
        for (at, line) in its.lines.iter().enumerate() {
            let class = if at == 0 { "bold" } else { "small" };
            let _ = writeln!(
                text,
                "<text class=\"{class}\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                x + 10.0,
                y + if its.kind == "bridge" { 16.0 } else { 18.0 } + 17.0 * at as f64,
                escaped(line)
            );
        }
        if let Some(score) = its.score {
            let colour = if score >= 90 {
                "#1a7f37"
            } else if score >= 60 {
                "#b7791f"
            } else {
                "#b91c1c"
            };
            let _ = writeln!(
                text,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"5\" fill=\"{colour}\"/>",
                x + width - 12.0,
                y + 13.0
            );
        }
        text.push_str("</g>\n");
    }
    for edge in &drawing.edges {
        let tip = escaped(&edge.tip.join("\n"));
        let _ =
            writeln!(text, "<g class=\"link\" id=\"{}\" data-tip=\"{tip}\"><title>{tip}</title>", escaped(&edge.id));
        // The wide invisible line is what a pointer meets.
        let _ = writeln!(
            text,
            "<path d=\"{}\" fill=\"none\" stroke=\"#000\" stroke-opacity=\"0\" stroke-width=\"12\" pointer-events=\"stroke\"/>",
            edge.path
        );
        let _ = writeln!(
            text,
            "<path class=\"edge\" d=\"{}\" stroke=\"{}\" stroke-width=\"{:.1}\"/>",
            edge.path, edge.colour, edge.width
        );
        if edge.in_ring {
            let _ = writeln!(
                text,
                "<path class=\"ring\" d=\"{}\" transform=\"translate(0 5)\" pointer-events=\"none\"/>",
                edge.path
            );
        }
        if edge.nccl_channels > 0 {
            let _ = writeln!(
                text,
                "<path class=\"nccl\" d=\"{}\" transform=\"translate(0 10)\" pointer-events=\"none\"/>",
                edge.path
            );
        }
        text.push_str("</g>\n");
    }
    legend(&mut text, drawing);
    text.push_str("</svg>\n");
    text
}

fn legend(text: &mut String, drawing: &Drawing) {
    let mut kinds: Vec<LinkKind> = drawing.edges.iter().map(|edge| edge.kind).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let (mut x, y) = (24.0, drawing.height - 18.0);
    for kind in kinds {
        let label = format!("{kind}: {}", kind.meaning());
        let _ = writeln!(
            text,
            "<line x1=\"{x:.0}\" y1=\"{0:.0}\" x2=\"{1:.0}\" y2=\"{0:.0}\" stroke=\"{2}\" stroke-width=\"3\"/>",
            y - 4.0,
            x + 20.0,
            colour(kind)
        );
        let _ = writeln!(text, "<text class=\"small\" x=\"{:.0}\" y=\"{y:.0}\">{}</text>", x + 26.0, escaped(&label));
        x += 52.0 + label.chars().count() as f64 * 6.2;
    }
    let rings = [
        ("ring", "libcomm's ring", drawing.edges.iter().any(|edge| edge.in_ring)),
        ("nccl", "NCCL's rings", drawing.edges.iter().any(|edge| edge.nccl_channels > 0)),
    ];
    for (class, label, _) in rings.into_iter().filter(|(_, _, drawn)| *drawn) {
        let _ = writeln!(text, "<path class=\"{class}\" d=\"M{x:.0} {0:.0} L{1:.0} {0:.0}\"/>", y - 4.0, x + 20.0);
        let _ = writeln!(text, "<text class=\"small\" x=\"{:.0}\" y=\"{y:.0}\">{label}</text>", x + 26.0);
        x += 52.0 + label.chars().count() as f64 * 6.2;
    }
}

/// Text as XML wants it.
pub fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            '\n' => safe.push_str("&#10;"),
            other if other.is_control() => safe.push(' '),
            other => safe.push(other),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::super::layout::layout;
    use super::*;
    use crate::topology::tests_support::two_sockets;

    #[test]
    fn every_link_is_drawn_once_and_names_cannot_break_out() {
        let mut machine = two_sockets();
        machine.gpus[0].name = Some("<script>alert('x')</script>".into());
        let text = svg(&layout(&machine, &[]));
        assert_eq!(text.matches("class=\"link\"").count(), 6);
        assert_eq!(text.matches("class=\"gpu\"").count(), 4);
        assert!(!text.contains("<script") && text.contains("&lt;script&gt;"));
        assert!(text.contains("measured 180 GB/s there, 181 GB/s back"));
    }

    #[test]
    fn the_rings_of_libcomm_and_nccl_are_drawn_beside_the_links_that_they_use() {
        let channels = vec![vec![0, 2, 1, 3], vec![0, 2, 1, 3]];
        let text = svg(&layout(&two_sockets(), &channels));
        // One more each in the legend.
        assert_eq!((text.matches("class=\"ring\"").count(), text.matches("class=\"nccl\"").count()), (5, 5));
        assert!(text.contains("on NCCL&#39;s ring: 2 of 2 channels"));
    }
}

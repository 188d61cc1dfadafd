//! Curves over time as a picture (SVG), in the style of `docs/figures`.

use std::fmt::Write as _;

use anyhow::Result;

/// A panel with its own scale.
pub(super) struct Panel<'a> {
    pub(super) label: &'a str,
    /// The value of the upper edge; greater ones are cut.
    pub(super) top: f64,
    pub(super) curves: Vec<Curve>,
}

/// Values over time in seconds; NaN makes a gap.
pub(super) struct Curve {
    /// Its colour: `a`, `b` or `c`.
    pub(super) class: &'static str,
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
}

/// Draws panels of the same time below each other.
///
/// # Errors
/// A text cannot be written, which does not happen.
pub(super) fn picture(title: &str, seconds: f64, panels: &[Panel<'_>]) -> Result<String> {
    let height = TOP + PITCH * panels.len() as f64 + 20.0;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\"\n     \
         width=\"{WIDTH}\" height=\"{height}\" role=\"img\">\n{STYLE}\n<title>{title}</title>\n\
         <text x=\"10\" y=\"20\" class=\"title\">{title}</text>\n"
    );
    let x = |at: f64| LEFT + (WIDTH - LEFT - RIGHT) * at / seconds;
    for (number, panel) in panels.iter().enumerate() {
        let top = TOP + PITCH * number as f64;
        let y = |value: f64| top + HEIGHT * (1.0 - (value / panel.top).clamp(0.0, 1.0));
        let end = x(seconds);
        writeln!(
            text,
            "<path class=\"grid\" d=\"M{LEFT} {top}H{end}M{LEFT} {0}H{end}\"/>\n\
             <text x=\"{LEFT}\" y=\"{1}\" class=\"note\">{2}</text>\n\
             <text x=\"{3}\" y=\"{4}\" class=\"note\" text-anchor=\"end\">{5}</text>",
            y(0.0),
            top - 6.0,
            panel.label,
            LEFT - 4.0,
            top + 9.0,
            panel.top,
        )?;
        let mut legend = LEFT + 190.0;
        for curve in &panel.curves {
            let Curve { class, name, points } = curve;
            let (line, mut pen) = (top - 10.0, 'M');
            writeln!(
                text,
                "<path class=\"{class} line\" d=\"M{legend} {line}h14\"/>\
                 <text x=\"{}\" y=\"{}\" class=\"note\">{name}</text>",
                legend + 18.0,
                top - 6.0,
            )?;
            legend += 175.0;
            write!(text, "<path class=\"{class} line\" d=\"")?;
            for (at, value) in points {
                if value.is_nan() {
                    pen = 'M';
                } else {
                    write!(text, "{pen}{:.1} {:.1}", x(*at), y(*value))?;
                    pen = 'L';
                }
            }
            writeln!(text, "\"/>")?;
        }
    }
    for at in (0..=seconds as u32).step_by(30) {
        let (x, y) = (x(f64::from(at)), height - 8.0);
        writeln!(text, "<text x=\"{x:.0}\" y=\"{y}\" text-anchor=\"middle\">{at} s</text>")?;
    }
    text.push_str("</svg>\n");
    Ok(text)
}

const WIDTH: f64 = 760.0;
const LEFT: f64 = 50.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 56.0;
const HEIGHT: f64 = 110.0;
const PITCH: f64 = 150.0;
const STYLE: &str = "<style>
text { font: 13px sans-serif; fill: #24292f; }
.title { font-weight: bold; font-size: 14px; }
.note { fill: #57606a; font-size: 12px; }
.grid { stroke: #8b949e; stroke-opacity: 0.35; }
.a { stroke: #1f6feb; }
.b { stroke: #d2691e; }
.c { stroke: #8b949e; }
.line { fill: none; stroke-width: 1.5; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .note { fill: #9da7b1; }
  .a { stroke: #58a6ff; }
  .b { stroke: #f0883e; }
}
</style>";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gap_lifts_the_pen_and_high_values_are_cut() {
        let points = vec![(0.0, 0.0), (10.0, 99.0), (20.0, f64::NAN), (30.0, 5.0)];
        let curve = Curve { class: "a", name: "one".into(), points };
        let panels = [Panel { label: "ms", top: 10.0, curves: vec![curve] }];
        let text = picture("t", 30.0, &panels).unwrap();
        assert!(text.contains("d=\"M50.0 166.0L280.0 56.0M740.0 111.0\""), "{text}");
        assert!(text.contains(">30 s</text>") && text.ends_with("</svg>\n"));
    }
}

//! Draws what the other benches have measured, for the README:
//!
//! ```sh
//! cargo bench --bench frames --bench requests --bench delivery
//! cargo bench --bench picture -- benches/costs.svg
//! ```
//!
//! Without a path the picture goes to `target/tmp/costs.svg`. Until whole runs of all three have left
//! their results there is none. These are files of the form that [`Results`] describes:
//!
//! | file | case | value |
//! |---|---|---|
//! | `frames.tsv` | `boxed, 64 B` | ns per frame |
//! | `requests.tsv` | `accepted, no body` | ns per request |
//! | `delivery.tsv` | `curl, 16 MiB declared` | % of the tries in which the client got the 413 |

mod support;

use std::{env, error::Error, fs, path::PathBuf};

use plotters::{
    coord::Shift,
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};
use support::Results;

const PANEL: (u32, u32) = (860, 320);
const LEGEND: u32 = 76;
const FONT: &str = "Helvetica, Arial, sans-serif";

const INK: RGBColor = RGBColor(31, 41, 55);
const PALE: RGBColor = RGBColor(107, 114, 128);
const RULE: RGBColor = RGBColor(229, 231, 235);

/// Whom a bar stands for: in the legend, in colour, and in the files of results.
struct Series {
    label: &'static str,
    color: RGBColor,
    names: &'static [&'static str],
}

const SERIES: [Series; 6] = [
    Series {
        label: "no limit",
        color: RGBColor(203, 208, 216),
        names: &["bare"],
    },
    Series {
        label: "tower-body-limit",
        color: RGBColor(29, 78, 216),
        names: &["LimitedBody", "request layer", "tower-body-limit"],
    },
    Series {
        label: "tower-body-limit, drain(128 MiB)",
        color: RGBColor(147, 180, 245),
        names: &["with drain(128 MiB)"],
    },
    Series {
        label: "http-body-util Limited",
        color: RGBColor(245, 180, 80),
        names: &["Limited"],
    },
    Series {
        label: "tower-http",
        color: RGBColor(217, 98, 32),
        names: &["tower-http"],
    },
    Series {
        label: "axum DefaultBodyLimit",
        color: RGBColor(128, 90, 150),
        names: &["DefaultBodyLimit"],
    },
];

/// Groups of bars over a common scale.
struct Panel {
    title: &'static str,
    unit: &'static str,
    /// The top of the scale, where it is not the highest bar.
    top: Option<f64>,
    groups: Vec<(String, Vec<(&'static Series, f64)>)>,
}

impl Panel {
    /// The cases that `label` has a name for; `None` if there are none. A line break in a label is
    /// written as `", "`.
    fn load(
        file: &str,
        title: &'static str,
        unit: &'static str,
        label: fn(&str) -> Option<&str>,
    ) -> Option<Self> {
        let results = Results::load(file)?;
        let cases = results.cases().into_iter();
        let groups = cases.filter_map(|case| {
            let bars = SERIES.iter().filter_map(|series| {
                let value = |name| results.value(case, name);
                Some((series, series.names.iter().copied().find_map(value)?))
            });
            Some((label(case)?.to_owned(), bars.collect()))
        });
        let groups: Vec<_> = groups.collect();
        (!groups.is_empty()).then_some(Self {
            title,
            unit,
            top: None,
            groups,
        })
    }

    fn shows(&self, series: &Series) -> bool {
        let mut bars = self.groups.iter().flat_map(|(_, bars)| bars);
        bars.any(|(shown, _)| shown.label == series.label)
    }
}

/// The clients that write all of their upload before they read, and one upload beyond the default
/// budget of a drain. All others get nearly every answer from everybody.
fn writers(case: &str) -> Option<&str> {
    Some(match case {
        "raw, gives up at a write error, 16 MiB declared" => "raw socket, 16 MiB",
        "raw, gives up at a write error, 64 MiB declared" => "raw socket, 64 MiB",
        "Python http.client, 16 MiB declared" => "http.client, 16 MiB",
        "reqwest, HTTP/1.1, 16 MiB declared" => "reqwest, 16 MiB",
        "hyper-util, HTTP/1.1, 16 MiB declared" => "hyper-util, 16 MiB",
        _ => return None,
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    let panels = [
        Panel::load(
            "frames",
            "Cost per frame",
            "ns to read one frame of a boxed body, by its size",
            |case| case.strip_prefix("boxed, "),
        ),
        Panel::load(
            "requests",
            "Cost per request",
            "ns for one request through a service in memory",
            |case| Some(case),
        ),
        Panel::load(
            "delivery",
            "Refused clients that receive the 413",
            "% of uploads over HTTP/1.1, by client and size of the upload",
            writers,
        )
        .map(|panel| Panel {
            top: Some(100.0),
            ..panel
        }),
    ];
    let panels: Vec<_> = panels.into_iter().flatten().collect();
    if panels.len() < 3 {
        println!("No picture: it needs whole runs of frames, requests and delivery.");
        return Ok(());
    }
    let svg = draw(&panels)?;
    let given = env::args().skip(1).find(|arg| arg.ends_with(".svg"));
    let path = given.map_or_else(
        || Results::path("costs").with_extension("svg"),
        PathBuf::from,
    );
    fs::write(&path, svg)?;
    println!("{}", path.display());
    Ok(())
}

fn draw(panels: &[Panel]) -> Result<String, Box<dyn Error>> {
    let size = (PANEL.0, PANEL.1 * panels.len() as u32 + LEGEND);
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        root.fill(&WHITE)?;
        let (legend, rest) = root.split_vertically(LEGEND);
        draw_legend(&legend, panels)?;
        for (area, panel) in rest.split_evenly((panels.len(), 1)).iter().zip(panels) {
            draw_panel(area, panel)?;
        }
        root.present()?;
    }
    Ok(svg)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn draw_legend(area: &Area<'_>, panels: &[Panel]) -> Result<(), Box<dyn Error>> {
    let shown = |series: &&Series| panels.iter().any(|panel| panel.shows(series));
    for (index, series) in SERIES.iter().filter(shown).enumerate() {
        let (x, y) = (24 + index as i32 % 3 * 280, 26 + index as i32 / 3 * 24);
        let corners = [(x, y - 7), (x + 14, y + 7)];
        area.draw(&Rectangle::new(corners, series.color.filled()))?;
        let style = text(15, &INK, HPos::Left, VPos::Center);
        area.draw(&Text::new(series.label, (x + 22, y), style))?;
    }
    Ok(())
}

fn draw_panel(area: &Area<'_>, panel: &Panel) -> Result<(), Box<dyn Error>> {
    let (width, height) = area.dim_in_pixel();
    let (left, right, top, bottom) = (64, width as i32 - 16, 72, height as i32 - 64);
    let title = text(19, &INK, HPos::Left, VPos::Center);
    area.draw(&Text::new(panel.title, (24, 14), title))?;
    let unit = text(13, &PALE, HPos::Left, VPos::Center);
    area.draw(&Text::new(panel.unit, (24, 38), unit))?;

    let bars = panel.groups.iter().flat_map(|(_, bars)| bars);
    let highest = bars.map(|&(_, value)| value).fold(0.0, f64::max);
    let step = step_for(panel.top.unwrap_or(highest));
    let scale = panel.top.unwrap_or_else(|| (highest / step).ceil() * step);
    let y = |value: f64| bottom - (value / scale * f64::from(bottom - top)).round() as i32;

    for tick in (0..)
        .map(|tick| f64::from(tick) * step)
        .take_while(|&tick| tick <= scale)
    {
        area.draw(&PathElement::new([(left, y(tick)), (right, y(tick))], RULE))?;
        let style = text(13, &PALE, HPos::Right, VPos::Center);
        area.draw(&Text::new(format!("{tick}"), (left - 8, y(tick)), style))?;
    }
    let room = (right - left) / panel.groups.len() as i32;
    for (index, (label, bars)) in panel.groups.iter().enumerate() {
        let start = left + index as i32 * room;
        let style = text(13, &INK, HPos::Center, VPos::Center);
        for (line, label) in label.split(", ").enumerate() {
            let at = (start + room / 2, bottom + 16 + line as i32 * 16);
            area.draw(&Text::new(label.to_owned(), at, style.clone()))?;
        }
        let slot = (room - 44) / bars.len() as i32;
        let slot = slot.min(44);
        let mut x = start + (room - slot * bars.len() as i32) / 2;
        for &(series, value) in bars {
            let corners = [(x + 1, y(value)), (x + slot - 1, bottom)];
            area.draw(&Rectangle::new(corners, series.color.filled()))?;
            let style = text(11, &INK, HPos::Center, VPos::Bottom);
            area.draw(&Text::new(
                short(value),
                (x + slot / 2, y(value) - 3),
                style,
            ))?;
            x += slot;
        }
    }
    area.draw(&PathElement::new([(left, bottom), (right, bottom)], PALE))?;
    Ok(())
}

/// A round number of which about five make the whole.
fn step_for(whole: f64) -> f64 {
    let magnitude = 10_f64.powf((whole / 5.0).log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0].map(|factor| factor * magnitude);
    let fits = |step: &f64| whole / step <= 5.5;
    steps.into_iter().find(fits).unwrap_or(10.0 * magnitude)
}

/// A value as it fits over a bar.
fn short(value: f64) -> String {
    let digits = usize::from(value < 100.0 && value.fract() != 0.0);
    format!("{value:.digits$}")
}

fn text(
    size: u32,
    color: &'static RGBColor,
    horizontal: HPos,
    vertical: VPos,
) -> TextStyle<'static> {
    let style = TextStyle::from((FONT, size).into_font()).color(color);
    style.pos(Pos::new(horizontal, vertical))
}

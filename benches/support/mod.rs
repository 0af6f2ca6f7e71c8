//! What the benches share: rounds of contenders that take turns, tables, and files of results.
//!
//! A machine is never quiet, so nothing here compares two numbers that were taken at different times.
//! All contenders are measured in each round, one right after the other, and what counts is the
//! median of the ratios within the rounds.

#![allow(dead_code, missing_docs, unreachable_pub)]

pub mod bodies;
pub mod services;

use std::{
    env, fmt,
    fmt::Write as _,
    fs, hint,
    path::{Path, PathBuf},
    pin::pin,
    process::Command,
    task::{Context, Poll, Waker},
    thread,
    time::{Duration, Instant},
};

pub const KIB: u64 = 1024;
pub const MIB: u64 = 1024 * KIB;

/// What was asked for on the command line.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    quick: bool,
}

impl Settings {
    /// Quick with `--quick`, and without the `--bench` that `cargo bench` gives: a smoke run under
    /// `cargo test --benches`.
    pub fn from_args() -> Self {
        let given = |flag| env::args().any(|arg| arg == flag);
        Self {
            quick: given("--quick") || !given("--bench"),
        }
    }

    pub fn quick(self) -> bool {
        self.quick
    }

    /// `full`, or `quick` in a smoke run.
    pub fn pick<T>(self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    pub fn rounds(self) -> usize {
        self.pick(301, 3)
    }

    /// How long one contender runs in one round: less than a scheduler's time slice, so that most
    /// rounds are not interrupted.
    pub fn slice(self) -> Duration {
        self.pick(Duration::from_micros(300), Duration::from_micros(50))
    }

    /// Prints what a reader has to know to judge the tables that follow.
    pub fn introduce(self, title: &str, peers: &[&str]) {
        println!("\n# {title}\n");
        println!("{}", machine());
        println!("{}", versions(peers));
        if self.quick {
            println!("A smoke run: the numbers mean nothing.");
        }
    }
}

/// Cores, processor, operating system, compiler.
pub fn machine() -> String {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or(env::consts::ARCH, |(_, model)| model);
    let release = read("/proc/sys/kernel/osrelease");
    let rustc = Command::new("rustc").arg("--version").output();
    let rustc = rustc.map_or_else(
        |_| "rustc of unknown version".into(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    );
    format!(
        "{cores} cores of {model}, {} {}, {rustc}",
        env::consts::OS,
        release.trim()
    )
}

/// Whom most benches compare with, and what they run on.
pub const PEERS: [&str; 5] = ["http-body-util", "tower-http", "axum", "hyper", "tokio"];

/// Packages as they are in `Cargo.lock`; of two versions the newer one.
pub fn versions(peers: &[&str]) -> String {
    const LOCK: &str = include_str!("../../Cargo.lock");
    let version = |name: &str| {
        let entry = format!("name = \"{name}\"\nversion = \"");
        let (_, after) = LOCK.rsplit_once(&entry)?;
        Some(format!("{name} {}", after.split('"').next()?))
    };
    peers
        .iter()
        .filter_map(|name| version(name))
        .collect::<Vec<_>>()
        .join(", ")
}

/// Something that is measured, by its name and its cost per unit of work.
pub struct Contender<'a> {
    name: String,
    measure: Box<dyn FnMut() -> f64 + 'a>,
}

impl<'a> Contender<'a> {
    /// Measures itself, in whatever unit.
    pub fn new(name: impl Into<String>, measure: impl FnMut() -> f64 + 'a) -> Self {
        Self {
            name: name.into(),
            measure: Box::new(measure),
        }
    }

    /// Runs for a slice of time, and reports nanoseconds per unit of `work`, which says how many
    /// units it did.
    pub fn timed(
        name: impl Into<String>,
        settings: Settings,
        mut work: impl FnMut() -> u64 + 'a,
    ) -> Self {
        Self::prepared(name, settings, || (), move |()| work())
    }

    /// As [`timed`](Self::timed), with something that is made before the clock starts.
    pub fn prepared<T>(
        name: impl Into<String>,
        settings: Settings,
        mut prepare: impl FnMut() -> T + 'a,
        mut work: impl FnMut(T) -> u64 + 'a,
    ) -> Self {
        Self::new(name, move || {
            let (mut elapsed, mut units) = (Duration::ZERO, 0);
            while elapsed < settings.slice() {
                let prepared = prepare();
                let start = Instant::now();
                units += work(prepared);
                elapsed += start.elapsed();
            }
            elapsed.as_nanos() as f64 / units as f64
        })
    }
}

impl fmt::Debug for Contender<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// What each contender measured in each round.
#[derive(Debug)]
pub struct Outcome {
    names: Vec<String>,
    rounds: Vec<Vec<f64>>,
}

/// Measures all contenders once in every round, each time starting with another one.
pub fn compete(rounds: usize, mut contenders: Vec<Contender<'_>>) -> Outcome {
    // The first time is for the caches.
    for contender in &mut contenders {
        (contender.measure)();
    }
    let count = contenders.len();
    let rounds = (0..rounds).map(|round| {
        let mut costs = vec![0.0; count];
        for turn in 0..count {
            // Forwards and backwards in turn, so that nobody always follows the same one.
            let turn = if round % 2 == 0 {
                turn
            } else {
                count - 1 - turn
            };
            let index = (round / 2 + turn) % count;
            costs[index] = (contenders[index].measure)();
        }
        costs
    });
    let rounds = rounds.collect();
    Outcome {
        names: contenders.into_iter().map(|it| it.name).collect(),
        rounds,
    }
}

impl Outcome {
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    pub fn median(&self, name: &str) -> f64 {
        let index = self.index(name);
        median(self.rounds.iter().map(|costs| costs[index]))
    }

    /// The median of what `a` is to `b` within a round.
    pub fn ratio(&self, a: &str, b: &str) -> f64 {
        let (a, b) = (self.index(a), self.index(b));
        median(self.rounds.iter().map(|costs| costs[a] / costs[b]))
    }

    /// The median of what `a` adds to `base` within a round, in parts of what `b` adds to it.
    pub fn added_ratio(&self, a: &str, b: &str, base: &str) -> f64 {
        let (a, b, base) = (self.index(a), self.index(b), self.index(base));
        let added = |costs: &Vec<f64>| (costs[a] - costs[base]) / (costs[b] - costs[base]);
        median(self.rounds.iter().map(added))
    }

    /// The median of what `a` adds to `base` within a round.
    pub fn added(&self, a: &str, base: &str) -> f64 {
        let (a, base) = (self.index(a), self.index(base));
        median(self.rounds.iter().map(|costs| costs[a] - costs[base]))
    }

    fn index(&self, name: &str) -> usize {
        let index = self.names.iter().position(|it| it == name);
        index.unwrap_or_else(|| panic!("nobody is called {name}"))
    }
}

pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Rows with a name, and numbers in columns.
#[derive(Debug)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new<S: Into<String>>(columns: impl IntoIterator<Item = S>) -> Self {
        Self {
            rows: vec![columns.into_iter().map(Into::into).collect()],
        }
    }

    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    pub fn print(&self, title: &str) {
        println!("\n## {title}\n\n{self}");
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |column| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells
                .map(|cell: &String| cell.chars().count())
                .max()
                .unwrap_or(0)
        };
        for (index, row) in self.rows.iter().enumerate() {
            let mut line = String::from("|");
            for (column, cell) in row.iter().enumerate() {
                let width = width(column);
                if column == 0 {
                    write!(line, " {cell:<width$} |")?;
                } else {
                    write!(line, " {cell:>width$} |")?;
                }
            }
            writeln!(f, "{line}")?;
            if index == 0 {
                let rule = (0..row.len()).map(|column| {
                    let end = if column == 0 { "-" } else { ":" };
                    format!("{}{end}|", "-".repeat(width(column) + 1))
                });
                writeln!(f, "|{}", rule.collect::<String>())?;
            }
        }
        Ok(())
    }
}

/// A number with as many digits as it deserves.
pub fn number(value: f64) -> String {
    match value.abs() {
        magnitude if magnitude < 9.995 => format!("{value:.2}"),
        magnitude if magnitude < 99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

pub fn bytes(count: u64) -> String {
    match count {
        0..KIB => format!("{count} B"),
        KIB..MIB => format!("{} KiB", count / KIB),
        MIB.. if count < 1024 * MIB => format!("{} MiB", count / MIB),
        _ => format!("{} GiB", count / (1024 * MIB)),
    }
}

/// Results that another bench reads, as tab-separated values in the target directory.
///
/// Each line is `case`, `contender`, `value`. Lines that start with `#` say where they come from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Results {
    rows: Vec<(String, String, f64)>,
}

impl Results {
    pub fn add(&mut self, case: impl Into<String>, contender: impl Into<String>, value: f64) {
        self.rows.push((case.into(), contender.into(), value));
    }

    /// Keeps them for the picture. A smoke run has nothing to keep.
    pub fn save(&self, name: &str, settings: Settings) {
        if settings.quick() {
            return;
        }
        let mut text = format!("# {}\n# {}\n", machine(), versions(&PEERS));
        for (case, contender, value) in &self.rows {
            writeln!(text, "{case}\t{contender}\t{value}").expect("memory does not fail");
        }
        fs::write(Self::path(name), text).expect("the target directory can be written to");
    }

    /// `None` if that bench has not run yet.
    pub fn load(name: &str) -> Option<Self> {
        let text = fs::read_to_string(Self::path(name)).ok()?;
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let rows = lines.map(|line| {
            let mut cells = line.split('\t').map(str::to_owned);
            Some((cells.next()?, cells.next()?, cells.next()?.parse().ok()?))
        });
        Some(Self {
            rows: rows.collect::<Option<_>>()?,
        })
    }

    /// Where the results of a bench are: `target/tmp/<name>.tsv`.
    pub fn path(name: &str) -> PathBuf {
        Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(name)
            .with_extension("tsv")
    }

    /// The cases, in the order in which they came.
    pub fn cases(&self) -> Vec<&str> {
        distinct(self.rows.iter().map(|(case, _, _)| case.as_str()))
    }

    pub fn contenders(&self) -> Vec<&str> {
        distinct(self.rows.iter().map(|(_, contender, _)| contender.as_str()))
    }

    pub fn value(&self, case: &str, contender: &str) -> Option<f64> {
        let row = self
            .rows
            .iter()
            .find(|row| row.0 == case && row.1 == contender);
        row.map(|&(_, _, value)| value)
    }
}

fn distinct<'a>(values: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut seen = Vec::new();
    for value in values {
        if !seen.contains(&value) {
            seen.push(value);
        }
    }
    seen
}

/// Polls a future until it is ready, without a runtime: nothing here waits for anything.
pub fn complete<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        hint::spin_loop();
    }
}

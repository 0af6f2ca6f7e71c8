//! What a limit costs per frame.
//!
//! ```sh
//! cargo bench --bench frames
//! ```

mod support;

use support::{
    Contender, Results, Settings, Table,
    bodies::{BARE, CONTENDERS, Frames, LIMITED, OURS, Reader, TOWER_HTTP},
    bytes, compete, number,
};

fn main() {
    let settings = Settings::from_args();
    settings.introduce("Cost per frame", &support::PEERS);
    let mut results = Results::default();
    for reader in Reader::ALL {
        let mut table = Table::new([
            "frames of",
            BARE,
            OURS,
            LIMITED,
            TOWER_HTTP,
            "ours adds",
            "Limited adds",
            "ratio",
        ]);
        for size in [64, 1024, 16 * 1024, 1024 * 1024] {
            let frames = Frames::new(size, 1024);
            let contenders = CONTENDERS.map(|name| {
                let frames = &frames;
                Contender::timed(name, settings, move || reader.read_as(name, frames.clone()))
            });
            let outcome = compete(settings.rounds(), contenders.into());
            let size = bytes(size as u64);
            for name in CONTENDERS {
                results.add(format!("{reader}, {size}"), name, outcome.median(name));
            }
            let cost = |name| number(outcome.median(name));
            table.row([
                size,
                cost(BARE),
                cost(OURS),
                cost(LIMITED),
                cost(TOWER_HTTP),
                number(outcome.added(OURS, BARE)),
                number(outcome.added(LIMITED, BARE)),
                number(outcome.added_ratio(OURS, LIMITED, BARE)),
            ]);
        }
        table.print(&format!(
            "ns per frame of a body in memory, {reader}, medians of {} rounds (budget: ratio at most 0.25)",
            settings.rounds()
        ));
    }
    results.save("frames", settings);
}

//! Records against their model, for any text, limit and split into frames.

use crate::{
    input::Input,
    records_model::{KINDS, check},
};

pub fn run(bytes: &[u8]) {
    let mut input = Input(bytes);
    let (max, cuts, every) = (input.limit(), input.numbers(12), input.flag());
    let text = input.rest();
    let cuts = if every {
        (0..text.len()).collect()
    } else {
        cuts
    };
    for kind in KINDS {
        check(text, &cuts, kind, max.min(u64::MAX - 1));
    }
}

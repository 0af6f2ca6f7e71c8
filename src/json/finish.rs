use std::fmt::Write;

use bytes::Bytes;

use super::{
    engine::{Object, Places},
    report::{CutReport, FitReport, UnfitReason},
    rope::{Rope, is_clean},
    settings::{CAP_REASON, Fit, Marker, Place, escape},
    store::{Point, Store},
    template::{Numbers, Template},
};

/// Makes the document of what is held once all of it was read.
pub(super) fn finish(
    fit: &Fit,
    mut store: Store,
    places: &Places,
    read: u64,
) -> Result<(FitReport, Vec<Bytes>), UnfitReason> {
    let (mut added, mut cut) = (Added::default(), None);
    if store.is_over() {
        added.copies(&store, &fit.copy_text, Numbers::default());
        let whole = store.part.as_ref().is_none_or(|part| part.whole);
        if !whole || !added.fit(fit, &store) {
            let report = cut_part(fit, &mut store, places, &mut added)?;
            cut = Some(report);
        }
    }
    let copies = if store.is_over() { store.copies().len() } else { 0 };
    let blocks = added.weave(store);
    if !is_clean(&blocks) {
        return Err(UnfitReason::Malformed);
    }
    let report = FitReport {
        limit: fit.limit,
        original: read,
        len: blocks.iter().map(|block| block.len() as u64).sum(),
        copies,
        cut,
    };
    debug_assert!(report.len <= fit.limit, "over the limit");
    Ok((report, blocks))
}

/// Text that comes to what is held.
#[derive(Debug, Default)]
struct Added {
    at: Vec<(Point, String)>,
    /// After the elastic part.
    ending: String,
}

impl Added {
    fn copies(&mut self, store: &Store, text: &Template, numbers: Numbers) {
        for point in store.copies() {
            let mut copy = String::from('"');
            text.write(numbers, &mut copy);
            copy.push('"');
            self.at.push((point, copy));
        }
    }

    fn fit(&self, fit: &Fit, store: &Store) -> bool {
        let added: usize = self.at.iter().map(|(_, text)| text.len()).sum();
        let held = store.fixed_len() + store.elastic.len();
        (held + added + self.ending.len()) as u64 <= fit.limit
    }

    fn weave(mut self, store: Store) -> Vec<Bytes> {
        self.at.sort_by_key(|(point, _)| *point);
        let is_in_head = |(point, _): &(Point, String)| !point.in_tail;
        let in_tail = self.at.split_off(self.at.partition_point(is_in_head));
        let mut blocks = Vec::new();
        weave(store.head, self.at, &mut blocks);
        blocks.extend(store.elastic.into_blocks());
        blocks.push(self.ending.into());
        weave(store.tail, in_tail, &mut blocks);
        blocks.retain(|block| !block.is_empty());
        blocks
    }
}

fn weave(rope: Rope, added: Vec<(Point, String)>, to: &mut Vec<Bytes>) {
    let (mut added, mut at) = (added.into_iter().peekable(), 0);
    for mut block in rope.into_blocks() {
        while let Some((point, text)) = added.next_if(|(point, _)| point.at <= at + block.len()) {
            let before = block.split_to(point.at - at);
            at = point.at;
            to.extend([before, text.into()]);
        }
        at += block.len();
        to.push(block);
    }
    to.extend(added.map(|(_, text)| Bytes::from(text)));
}

/// Keeps as much of the elastic part as fits with all that has to be said about the rest.
fn cut_part(
    fit: &Fit,
    store: &mut Store,
    places: &Places,
    added: &mut Added,
) -> Result<CutReport, UnfitReason> {
    let Some(part) = &store.part else {
        return Err(UnfitReason::TooLarge);
    };
    let quotes = if part.is_string { 2 } else { 0 };
    if part.bytes <= quotes {
        return Err(UnfitReason::TooLarge);
    }
    let markers = MarkerPlace::find(fit, store, places)?;
    let total = if part.is_string { part.bytes - quotes } else { part.items };
    let mut say = |store: &Store, kept: u64, next_offset: u64| {
        let numbers = Numbers { kept, total, next_offset };
        added.at.clear();
        added.copies(store, fit.note.as_ref().unwrap_or(&fit.copy_text), numbers);
        added.ending.clear();
        if quotes > 0 {
            fit.ending().write(numbers, &mut added.ending);
            added.ending.push('"');
        }
        if let Some(place) = &markers {
            added.at.push((place.point, place.text(fit, numbers)));
        }
        added.fit(fit, store)
    };
    if part.is_string {
        // Not all of it, as then it would not be cut.
        let held = store.elastic.len().min(part.bytes as usize - 2);
        let mut end = held;
        loop {
            end = store.elastic.floor_boundary(end);
            if end < 2 {
                return Err(UnfitReason::NothingKept);
            }
            store.elastic.truncate(end);
            let kept = end as u64 - 1;
            if say(store, kept, 0) {
                let next_offset = None;
                return Ok(CutReport { kept, total, next_offset });
            }
            end -= 1;
        }
    }
    let offset = fit.offset.map(Ok).or(places.offset).unwrap_or(Ok(0))?;
    // Then no part of the items leads beyond it either.
    offset.checked_add(total).ok_or(UnfitReason::BadOffset)?;
    loop {
        let kept = store.part.as_ref().map_or(0, |part| part.kept);
        let next_offset = offset + kept;
        // All of them may be there, and just not fit.
        if kept < total && say(store, kept, next_offset) {
            let next_offset = Some(next_offset);
            return Ok(CutReport { kept, total, next_offset });
        }
        if !store.give_up_item() {
            return Err(UnfitReason::NothingKept);
        }
    }
}

/// Where the markers go, and what goes around them there.
struct MarkerPlace {
    point: Point,
    before: String,
    after: &'static str,
}

impl MarkerPlace {
    /// `None` if there are none.
    fn find(fit: &Fit, store: &Store, places: &Places) -> Result<Option<Self>, UnfitReason> {
        let Some(place) = fit.place().filter(|_| fit.markers().next().is_some()) else {
            return Ok(None);
        };
        let (object, new) = match place {
            Place::At(_) if places.misplaced => return Err(UnfitReason::NoPlace),
            Place::At(pointer) => match (places.target, pointer.tokens().last()) {
                (None, Some(name)) => (places.parent, Some(name)),
                (target, _) => (target, None),
            },
            Place::Holder | Place::Headers => (places.holder, None),
        };
        let at = |object: Object| Some((object, store.point(object.end?)));
        let (object, point) = object.and_then(at).ok_or(UnfitReason::NoPlace)?;
        if object.has_marker && new.is_none() {
            return Err(UnfitReason::MarkerTaken);
        }
        let mut before = String::from(if object.is_empty { "" } else { "," });
        if let Some(name) = new {
            before.push('"');
            escape(name, &mut before);
            before.push_str("\":{");
        }
        let after = if new.is_some() { "}" } else { "" };
        Ok(Some(Self { point, before, after }))
    }

    fn text(&self, fit: &Fit, numbers: Numbers) -> String {
        let mut text = self.before.clone();
        for (index, (marker, name)) in fit.markers().enumerate() {
            text.push_str(if index > 0 { ",\"" } else { "\"" });
            escape(name, &mut text);
            text.push_str("\":");
            // Writing to a string does not fail.
            let _ = match (marker, &fit.note) {
                (Marker::Truncated, _) => write!(text, "true"),
                (Marker::NextOffset, _) => write!(text, "{}", numbers.next_offset),
                (Marker::CapReason, _) => write!(text, "\"{CAP_REASON}\""),
                (Marker::Total, _) => write!(text, "{}", numbers.total),
                (Marker::Note, None) => write!(text, "null"),
                (Marker::Note, Some(note)) => {
                    text.push('"');
                    note.write(numbers, &mut text);
                    write!(text, "\"")
                }
            };
        }
        text.push_str(self.after);
        text
    }
}

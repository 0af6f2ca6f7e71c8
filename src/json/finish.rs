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
        if !places.has_originals() {
            return Err(UnfitReason::TooLarge);
        }
        added.copies(&store, &fit.copy_text, Numbers::default());
        let whole = store.part.as_ref().is_none_or(|part| part.whole);
        if !whole || added.excess(fit, &store) > 0 {
            let report = cut_part(fit, &mut store, places, &mut added)?;
            cut = Some(report);
        }
    }
    let copies = if store.is_over() {
        store.copies().len()
    } else {
        0
    };
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

    /// How many bytes there are too many.
    fn excess(&self, fit: &Fit, store: &Store) -> u64 {
        let added: usize = self.at.iter().map(|(_, text)| text.len()).sum();
        let held = store.fixed_len() + store.elastic.len();
        ((held + added + self.ending.len()) as u64).saturating_sub(fit.limit)
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
    let part = store.part.as_ref().ok_or(UnfitReason::TooLarge)?;
    let (is_string, bytes, items) = (part.is_string, part.bytes, part.items);
    if bytes == 0 || (is_string && bytes == QUOTES) {
        return Err(UnfitReason::TooLarge);
    }
    let markers = MarkerPlace::find(fit, store, places)?;
    let cutting = Cutting {
        fit,
        markers,
        added,
    };
    if is_string {
        return cutting.string(store, bytes - QUOTES);
    }
    let offset = fit.offset.map(Ok).or(places.offset).unwrap_or(Ok(0))?;
    // Then no part of the items leads beyond it either.
    offset.checked_add(items).ok_or(UnfitReason::BadOffset)?;
    cutting.array(store, items, offset)
}

/// How many bytes of a string are not its own.
const QUOTES: u64 = 2;

struct Cutting<'a> {
    fit: &'a Fit,
    markers: Option<MarkerPlace>,
    added: &'a mut Added,
}

impl Cutting<'_> {
    fn array(
        mut self,
        store: &mut Store,
        total: u64,
        offset: u64,
    ) -> Result<CutReport, UnfitReason> {
        loop {
            let kept = store.part.as_ref().map_or(0, |part| part.kept);
            let next_offset = offset + kept;
            let numbers = Numbers {
                kept,
                total,
                next_offset,
            };
            // All of them may be there, and just not fit.
            let excess = if kept < total {
                self.say(store, numbers)
            } else {
                1
            };
            if excess == 0 {
                let next_offset = Some(next_offset);
                return Ok(CutReport {
                    kept,
                    total,
                    next_offset,
                });
            }
            // None of these is one too many, and to say it all again for each would take long.
            let enough = (store.elastic.len() as u64).saturating_sub(excess);
            let mut items = until_shorter(kept).min(until_shorter(next_offset));
            while items > 0 && store.elastic.len() as u64 > enough {
                if !store.give_up_item() {
                    return Err(UnfitReason::NothingKept);
                }
                items -= 1;
            }
        }
    }

    fn string(mut self, store: &mut Store, total: u64) -> Result<CutReport, UnfitReason> {
        let ending = self.fit.ending();
        // Not all of it, as then it would not be cut.
        let mut end = usize::try_from(total)
            .map_or(store.elastic.len(), |total| store.elastic.len().min(total));
        loop {
            end = store.elastic.floor_boundary(end);
            // The quote alone is nothing.
            if end <= 1 {
                return Err(UnfitReason::NothingKept);
            }
            store.elastic.truncate(end);
            let numbers = Numbers {
                kept: end as u64 - 1,
                total,
                next_offset: 0,
            };
            self.added.ending.clear();
            ending.write(numbers, &mut self.added.ending);
            self.added.ending.push('"');
            let excess = self.say(store, numbers);
            if excess == 0 {
                return Ok(CutReport {
                    kept: numbers.kept,
                    total,
                    next_offset: None,
                });
            }
            let surely = excess.min(until_shorter(numbers.kept));
            end = end.saturating_sub(surely as usize);
        }
    }

    /// Says what was cut, and returns how many bytes are too many then.
    fn say(&mut self, store: &Store, numbers: Numbers) -> u64 {
        let text = self.fit.note.as_ref().unwrap_or(&self.fit.copy_text);
        self.added.at.clear();
        self.added.copies(store, text, numbers);
        if let Some(place) = &self.markers {
            let text = place.text(self.fit, numbers);
            self.added.at.push((place.point, text));
        }
        self.added.excess(self.fit, store)
    }
}

/// How far a number goes down until it has a digit less, and what is said about it is shorter.
fn until_shorter(number: u64) -> u64 {
    let least = 10_u64.pow(number.checked_ilog10().unwrap_or(0));
    number.saturating_sub(least) + 1
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
        if fit.marks_headers() && fit.has_twin_markers() {
            return Err(UnfitReason::MarkerTaken);
        }
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
        if fit.has_twin_markers() || (object.has_marker && new.is_none()) {
            return Err(UnfitReason::MarkerTaken);
        }
        let mut before = String::from(if object.is_empty { "" } else { "," });
        if let Some(name) = new {
            before.push('"');
            escape(name, &mut before);
            before.push_str("\":{");
        }
        let after = if new.is_some() { "}" } else { "" };
        Ok(Some(Self {
            point,
            before,
            after,
        }))
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

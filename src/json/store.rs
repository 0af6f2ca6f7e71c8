use std::{mem, ops::Range};

use super::{report::UnfitReason, rope::Rope, scan::Stop};

/// How much more of a string is kept than can be, so that its end can be told from the middle of a
/// character.
const LOOKAHEAD: usize = 12;

/// What is held of a document, and what is not any more.
///
/// ```text
///   "a":1,"rows":[   {..},{..},{..}   ],"b":2
///   head             elastic          tail
/// ```
///
/// Of the elastic part whole items are given up, off its end, as the rest needs the room. Where the
/// largest array is wanted, the array that is being read is `undecided` while it is not larger than the
/// elastic one: it stands at the end of the tail, and is not counted against the elastic one yet.
#[derive(Debug)]
pub(super) struct Store {
    limit: usize,
    pub(super) head: Rope,
    pub(super) elastic: Rope,
    pub(super) tail: Rope,
    pub(super) part: Option<Part>,
    undecided: Option<Undecided>,
    flow: Flow,
    /// How many bytes more the document may have until it is known to be over the limit.
    left: u64,
    over: bool,
    ambiguous: bool,
    points: Vec<Point>,
    copies: Vec<Copy>,
}

/// The elastic part.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) is_string: bool,
    depth: usize,
    /// Without insignificant whitespace, kept or not.
    pub(super) bytes: u64,
    /// How many items there were.
    pub(super) items: u64,
    pub(super) kept: u64,
    /// The end of the last one that is kept.
    kept_end: usize,
    /// Whether all of it is held.
    pub(super) whole: bool,
}

#[derive(Debug)]
struct Undecided {
    depth: usize,
    start: usize,
    bytes: u64,
    items: u64,
    last_end: usize,
}

/// What becomes of the text that comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    Fixed,
    Elastic,
    /// The end of the elastic part, for which there is no room.
    Dropped,
    Undecided,
    Copy,
    DroppedCopy,
}

/// What a value was that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The elastic part.
    Part,
    /// One that was looked at, and has to be kept or left out as it is.
    Kept,
    Other,
}

/// A place in what is held, which stays the same place when that changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Point {
    pub(super) in_tail: bool,
    pub(super) at: usize,
}

/// The number of a [`Point`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark(usize);

#[derive(Clone, Copy, Debug)]
struct Copy {
    start: Mark,
    end: Option<Mark>,
}

impl Store {
    pub(super) fn new(limit: u64) -> Self {
        Self {
            limit: usize::try_from(limit).unwrap_or(usize::MAX),
            head: Rope::default(),
            elastic: Rope::default(),
            tail: Rope::default(),
            part: None,
            undecided: None,
            flow: Flow::Fixed,
            left: limit,
            over: false,
            ambiguous: false,
            points: Vec::new(),
            copies: Vec::new(),
        }
    }

    /// Whether the document is known to be over the limit.
    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    /// Whether values that begin now are looked for.
    pub(super) fn is_fixed(&self) -> bool {
        self.flow == Flow::Fixed
    }

    /// The array that is being read, by its depth, whose items are counted and not looked at.
    pub(super) fn open_array(&self) -> Option<usize> {
        match self.flow {
            Flow::Elastic | Flow::Dropped => self
                .part
                .as_ref()
                .filter(|part| !part.is_string)
                .map(|part| part.depth),
            Flow::Undecided => self.undecided.as_ref().map(|array| array.depth),
            Flow::Fixed | Flow::Copy | Flow::DroppedCopy => None,
        }
    }

    /// How many bytes are held of what has to be kept.
    pub(super) fn fixed_len(&self) -> usize {
        self.head.len() + self.tail.len()
    }

    /// How many copies were left out, or would be.
    pub(super) fn copies(&self) -> impl ExactSizeIterator<Item = Point> {
        self.copies.iter().map(|copy| self.point(copy.start))
    }

    pub(super) fn mark(&mut self) -> Mark {
        let point = Point {
            in_tail: self.part.is_some(),
            at: self.fixed().len(),
        };
        self.points.push(point);
        Mark(self.points.len() - 1)
    }

    pub(super) fn point(&self, mark: Mark) -> Point {
        self.points[mark.0]
    }

    /// A pointer that has to be followed turned out to be ambiguous.
    pub(super) fn set_ambiguous(&mut self, at: u64) -> Result<(), Stop> {
        self.ambiguous = true;
        if self.over {
            return stop(UnfitReason::Ambiguous, at);
        }
        Ok(())
    }

    pub(super) fn begin_string(&mut self, depth: usize) {
        self.begin_part(depth, true);
    }

    /// Begins an array that may be cut: the only one, or one more of which the largest is.
    pub(super) fn begin_array(&mut self, depth: usize) {
        if self.part.is_none() {
            return self.begin_part(depth, false);
        }
        self.flow = Flow::Undecided;
        self.undecided = Some(Undecided {
            depth,
            start: self.tail.len(),
            bytes: 0,
            items: 0,
            last_end: 0,
        });
    }

    fn begin_part(&mut self, depth: usize, is_string: bool) {
        self.flow = Flow::Elastic;
        self.part = Some(Part {
            is_string,
            depth,
            bytes: 0,
            items: 0,
            kept: 0,
            kept_end: 0,
            whole: true,
        });
    }

    pub(super) fn begin_copy(&mut self) {
        let start = self.mark();
        self.copies.push(Copy { start, end: None });
        self.flow = if self.over {
            Flow::DroppedCopy
        } else {
            Flow::Copy
        };
    }

    /// A value at this depth ends.
    pub(super) fn end(&mut self, depth: usize, at: u64) -> Result<Ended, Stop> {
        let ended = match (self.flow, &mut self.part, &self.undecided) {
            (Flow::Elastic | Flow::Dropped, Some(part), _) if part.depth == depth => {
                if part.bytes > 0 {
                    part.items += 1;
                }
                if self.flow == Flow::Elastic {
                    (part.kept, part.kept_end) = (part.items, self.elastic.len());
                }
                Ended::Part
            }
            (Flow::Undecided, _, Some(array)) if array.depth == depth => {
                self.undecided = None;
                Ended::Kept
            }
            (Flow::Copy | Flow::DroppedCopy, ..) => {
                let end = self.mark();
                if let Some(copy) = self.copies.last_mut() {
                    copy.end = Some(end);
                }
                Ended::Kept
            }
            _ => return Ok(Ended::Other),
        };
        self.flow = Flow::Fixed;
        self.make_room(0, at)?;
        Ok(ended)
    }

    pub(super) fn wants_items(&self) -> bool {
        matches!(self.flow, Flow::Elastic | Flow::Undecided)
    }

    pub(super) fn comma(&mut self) {
        match (self.flow, &mut self.part, &mut self.undecided) {
            (Flow::Elastic, Some(part), _) => {
                part.items += 1;
                (part.kept, part.kept_end) = (part.items, self.elastic.len());
            }
            (Flow::Dropped, Some(part), _) => part.items += 1,
            (Flow::Undecided, _, Some(array)) => {
                array.items += 1;
                array.last_end = self.tail.len() - array.start;
            }
            _ => {}
        }
    }

    pub(super) fn text(&mut self, text: &[u8], at: u64) -> Result<(), Stop> {
        if let (Flow::Dropped, Some(part)) = (self.flow, &mut self.part) {
            part.bytes += text.len() as u64;
            return Ok(());
        }
        if self.over {
            return self.hold(text, at);
        }
        let fits = usize::try_from(self.left).map_or(text.len(), |left| left.min(text.len()));
        let (now, later) = text.split_at(fits);
        self.left -= fits as u64;
        self.hold(now, at)?;
        if later.is_empty() {
            return Ok(());
        }
        let at = at + fits as u64;
        self.go_over(at + 1)?;
        self.hold(later, at)
    }

    /// The document is over the limit even without whitespace.
    fn go_over(&mut self, at: u64) -> Result<(), Stop> {
        self.over = true;
        if self.ambiguous {
            return stop(UnfitReason::Ambiguous, at);
        }
        self.take_copies_out(false);
        self.take_copies_out(true);
        if self.flow == Flow::Copy {
            self.flow = Flow::DroppedCopy;
        }
        Ok(())
    }

    /// Takes the copies out of the head or the tail, all in one pass.
    fn take_copies_out(&mut self, in_tail: bool) {
        let rope = if in_tail {
            &mut self.tail
        } else {
            &mut self.head
        };
        let mut cuts = Vec::new();
        for copy in &self.copies {
            let start = self.points[copy.start.0];
            let end = copy.end.map(|end| self.points[end.0].at);
            if start.in_tail == in_tail {
                cuts.push(start.at..end.unwrap_or(rope.len()));
            }
        }
        if cuts.is_empty() {
            return;
        }
        *rope = mem::take(rope).without(&cuts);
        let shift = |at: &mut usize| {
            let before = cuts.iter().take_while(|cut| cut.end <= *at);
            *at -= before.map(Range::len).sum::<usize>();
        };
        for point in &mut self.points {
            if point.in_tail == in_tail {
                shift(&mut point.at);
            }
        }
        if let Some(array) = self.undecided.as_mut().filter(|_| in_tail) {
            shift(&mut array.start);
        }
    }

    fn fixed(&mut self) -> &mut Rope {
        if self.part.is_some() {
            &mut self.tail
        } else {
            &mut self.head
        }
    }

    fn hold(&mut self, text: &[u8], at: u64) -> Result<(), Stop> {
        match self.flow {
            Flow::Fixed => {
                self.make_room(text.len(), at)?;
                self.fixed().push(text);
            }
            Flow::Copy => self.fixed().push(text),
            Flow::Elastic => self.hold_elastic(text, at)?,
            Flow::Undecided => self.hold_undecided(text, at)?,
            Flow::DroppedCopy => {}
            Flow::Dropped => {
                if let Some(part) = &mut self.part {
                    part.bytes += text.len() as u64;
                }
            }
        }
        Ok(())
    }

    fn hold_elastic(&mut self, text: &[u8], at: u64) -> Result<(), Stop> {
        let fixed = self.fixed_len();
        let Some(part) = &mut self.part else {
            return Ok(());
        };
        part.bytes += text.len() as u64;
        let room = room_for(part, self.limit, fixed).saturating_sub(self.elastic.len());
        if !self.over || text.len() <= room {
            self.elastic.push(text);
            return Ok(());
        }
        let at = at + room as u64 + 1;
        self.flow = Flow::Dropped;
        part.whole = false;
        if part.is_string {
            self.elastic.push(&text[..room]);
            if self.limit.saturating_sub(fixed) < LEAST_OF_STRING {
                return stop(UnfitReason::NothingKept, at);
            }
            return Ok(());
        }
        self.elastic.truncate(part.kept_end);
        if part.kept == 0 {
            return stop(UnfitReason::NothingKept, at);
        }
        Ok(())
    }

    fn hold_undecided(&mut self, text: &[u8], at: u64) -> Result<(), Stop> {
        let room = self.limit.saturating_sub(self.fixed_len());
        let (Some(array), Some(part)) = (&mut self.undecided, &self.part) else {
            return Ok(());
        };
        let until_larger = usize::try_from(part.bytes - array.bytes).unwrap_or(usize::MAX);
        let fits = text.len().min(until_larger.saturating_add(1));
        // The smaller one of the two has to be kept.
        if self.over && fits > room {
            return stop(UnfitReason::TooLarge, at + room as u64 + 1);
        }
        let (now, later) = text.split_at(fits);
        array.bytes += fits as u64;
        let is_larger = array.bytes > part.bytes;
        self.tail.push(now);
        let at = at + fits as u64;
        if is_larger {
            self.promote(at)?;
        }
        if later.is_empty() {
            return Ok(());
        }
        self.hold(later, at)
    }

    /// Makes the array that is being read the elastic one.
    fn promote(&mut self, at: u64) -> Result<(), Stop> {
        let (Some(array), Some(part)) = (self.undecided.take(), &mut self.part) else {
            return Ok(());
        };
        if !part.whole {
            return stop(UnfitReason::TooLarge, at);
        }
        *part = Part {
            is_string: false,
            depth: array.depth,
            bytes: array.bytes,
            items: array.items,
            kept: array.items,
            kept_end: array.last_end,
            whole: true,
        };
        self.flow = Flow::Elastic;
        let items = self.tail.split_off(array.start);
        self.head.append(mem::replace(&mut self.elastic, items));
        let moved_to = self.head.len();
        self.head.append(mem::take(&mut self.tail));
        for point in self.points.iter_mut().filter(|point| point.in_tail) {
            point.in_tail = false;
            point.at += moved_to;
        }
        self.make_room(0, at)
    }

    /// Gives up as much of the elastic part as so many bytes more need, and no more than that.
    fn make_room(&mut self, more: usize, at: u64) -> Result<(), Stop> {
        if !self.over {
            return Ok(());
        }
        let fixed = self.fixed_len();
        let wanted = fixed + more;
        // The first byte that is too many, or all there is where what was held before is too much.
        let settled = |at_most: usize| {
            let fits = at_most.saturating_sub(fixed);
            at + fits.saturating_add(1).min(more) as u64
        };
        let Some(part) = self.part.as_mut().filter(|part| part.bytes > 0) else {
            return if wanted > self.limit {
                stop(UnfitReason::TooLarge, settled(self.limit))
            } else {
                Ok(())
            };
        };
        if part.is_string {
            if wanted + LEAST_OF_STRING > self.limit {
                let at_most = self.limit.saturating_sub(LEAST_OF_STRING);
                return stop(UnfitReason::NothingKept, settled(at_most));
            }
            let room = room_for(part, self.limit, wanted);
            part.whole &= self.elastic.len() <= room;
            self.elastic.truncate(room);
            return Ok(());
        }
        if self.elastic.len() <= self.limit.saturating_sub(wanted) {
            return Ok(());
        }
        if self.flow == Flow::Elastic {
            self.flow = Flow::Dropped;
            part.whole = false;
            self.elastic.truncate(part.kept_end);
        }
        while wanted + self.elastic.len() > self.limit {
            if !give_up_item(part, &mut self.elastic) {
                let at_most = self.limit.saturating_sub(self.elastic.len());
                return stop(UnfitReason::NothingKept, settled(at_most));
            }
        }
        if part.kept == 0 {
            return stop(UnfitReason::NothingKept, at);
        }
        Ok(())
    }

    /// Gives up the last item that is kept, unless it is the only one.
    pub(super) fn give_up_item(&mut self) -> bool {
        let part = self.part.as_mut();
        part.is_some_and(|part| give_up_item(part, &mut self.elastic))
    }
}

/// A quote and a character.
const LEAST_OF_STRING: usize = 2;

fn give_up_item(part: &mut Part, elastic: &mut Rope) -> bool {
    if part.kept <= 1 {
        return false;
    }
    let Some(comma) = elastic.last_comma() else {
        return false;
    };
    elastic.truncate(comma);
    part.whole = false;
    part.kept -= 1;
    part.kept_end = comma;
    true
}

/// How much may be held of the elastic part beside so many bytes.
fn room_for(part: &Part, limit: usize, fixed: usize) -> usize {
    let room = limit.saturating_sub(fixed);
    if part.is_string {
        room.saturating_add(LOOKAHEAD)
    } else {
        room
    }
}

fn stop<T>(reason: UnfitReason, at: u64) -> Result<T, Stop> {
    Err(Stop { reason, at })
}

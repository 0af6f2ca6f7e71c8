use std::{mem, str, sync::Arc};

use bytes::Bytes;

use super::{
    finish,
    pointer::{Key, Tracker},
    report::{FitReport, Unfit, UnfitReason},
    scan::{Kind, Levels, Scanner, Sink, Stop},
    settings::{Cut, Fit, Place},
    store::{Ended, Mark, Store},
};

/// The longest `id` that is kept, in bytes.
const LONGEST_ID: usize = 256;

/// Makes one document fit that is known to be over its limit, chunk by chunk.
///
/// What comes out does not depend on the chunks: every decision is made at a certain byte.
#[derive(Debug)]
pub(super) struct Engine {
    scanner: Scanner,
    work: Work,
}

impl Engine {
    pub(super) fn new(fit: Arc<Fit>) -> Self {
        Self {
            scanner: Scanner::new(fit.max_depth),
            work: Work::new(fit),
        }
    }

    /// Reads on after the outcome is settled, to know what message it was.
    #[cfg(feature = "records")]
    pub(super) fn for_event(fit: Arc<Fit>) -> Self {
        let mut engine = Self::new(fit);
        engine.work.reads_on = true;
        engine
    }

    /// Whether what was read is a JSON-RPC message that answers a request.
    #[cfg(feature = "records")]
    pub(super) fn is_answer(&self) -> bool {
        let work = &self.work;
        work.is_rpc && work.has_outcome && !work.has_method && matches!(work.id, Some(Some(_)))
    }

    /// Reads a chunk. After an error the outcome is that error, and the rest need not be read.
    pub(super) fn feed(&mut self, chunk: &[u8]) -> Result<(), Stop> {
        let max_scan = self.work.fit.max_scan;
        let left = max_scan.saturating_sub(self.scanner.read());
        let fits = usize::try_from(left).map_or(chunk.len(), |left| left.min(chunk.len()));
        let result = self.scanner.feed(&chunk[..fits], &mut self.work);
        let result = match result {
            Ok(()) if fits < chunk.len() => Err(Stop {
                reason: UnfitReason::ScanLimit,
                at: max_scan.saturating_add(1),
            }),
            result => result,
        };
        result.map_err(|stop| self.work.first(stop))
    }

    /// The outcome once everything was read.
    pub(super) fn finish(mut self) -> Result<(FitReport, Vec<Bytes>), Unfit> {
        let read = self.scanner.read();
        let finished = self.scanner.finish(&mut self.work);
        let finished = finished.and_then(|()| self.work.settled.map_or(Ok(()), Err));
        let finished = finished.map_err(|stop| self.work.first(stop).reason);
        let work = self.work;
        finished
            .and_then(|()| finish::finish(&work.fit, work.store, &work.places, read))
            .map_err(|reason| Unfit {
                reason,
                limit: work.fit.limit,
                actual: read,
                exact: true,
                id: work.id.flatten(),
            })
    }

    /// The outcome after an error, of a document that is declared to have so many bytes.
    pub(super) fn unfit(self, stop: Stop, declared: Option<u64>) -> Unfit {
        // What is disproved is not repeated.
        let declared = declared.filter(|&declared| declared >= stop.at);
        Unfit {
            reason: stop.reason,
            limit: self.work.fit.limit,
            actual: declared.unwrap_or(stop.at),
            exact: declared.is_some(),
            id: self.work.id.flatten(),
        }
    }
}

/// What the scan has found.
#[derive(Debug)]
struct Work {
    fit: Arc<Fit>,
    store: Store,
    trackers: Vec<(Role, Tracker)>,
    places: Places,
    path: Option<Path>,
    key: Key,
    in_key: bool,
    capture: Option<Capture>,
    /// Whether the object that would hold the array has a member with a marker's name.
    holder_has_marker: bool,
    /// Whether a member `jsonrpc` came.
    is_rpc: bool,
    #[cfg(feature = "records")]
    has_method: bool,
    /// Whether a member `result` or `error` came.
    #[cfg(feature = "records")]
    has_outcome: bool,
    /// Whether all is read, whatever the outcome.
    reads_on: bool,
    is_id_next: bool,
    /// The first top-level `id`, if it is one that can be repeated.
    id: Option<Option<Box<str>>>,
    /// The outcome, while the rest is read only to know what message it is.
    settled: Option<Stop>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Cut,
    /// One of the copies, by its number.
    Copy(usize),
    /// What it is a copy of.
    Original(usize),
    Place,
    Offset,
}

/// What is known about where markers may go.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// The object that holds the array.
    pub(super) holder: Option<Object>,
    /// The object at the pointer.
    pub(super) target: Option<Object>,
    /// The one that would hold it.
    pub(super) parent: Option<Object>,
    /// Whether what is at the pointer is no object.
    pub(super) misplaced: bool,
    /// The copies that were found, by their numbers.
    copies: Vec<usize>,
    /// The copies whose originals were found.
    originals: Vec<usize>,
    /// The offset of the first item, as the document has it.
    pub(super) offset: Option<Result<u64, UnfitReason>>,
}

impl Places {
    /// Whether all that the copies say is said elsewhere.
    pub(super) fn has_originals(&self) -> bool {
        let mut copies = self.copies.iter();
        copies.all(|copy| self.originals.contains(copy))
    }
}

/// An object that markers may be added to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Object {
    depth: usize,
    pub(super) is_empty: bool,
    pub(super) has_marker: bool,
    /// Its end, once that was reached.
    pub(super) end: Option<Mark>,
}

impl Object {
    fn new(depth: usize) -> Self {
        Self {
            depth,
            is_empty: true,
            has_marker: false,
            end: None,
        }
    }
}

/// The open objects that are reached through objects alone, in the scope of the largest array.
#[derive(Debug)]
struct Path {
    outermost: usize,
    innermost: usize,
    has_marker: Levels,
}

/// A scalar that is wanted.
#[derive(Debug)]
struct Capture {
    text: Vec<u8>,
    is_id: bool,
    is_offset: bool,
}

impl Work {
    fn new(fit: Arc<Fit>) -> Self {
        let mut trackers = Vec::new();
        if let Cut::Array(at) | Cut::LargestArray(at) | Cut::String(at) = &fit.cut {
            trackers.push((Role::Cut, Tracker::new(at)));
        }
        if let Some(Place::At(at)) = fit.place() {
            trackers.push((Role::Place, Tracker::new(at)));
        }
        if let (Some(at), None) = (&fit.offset_at, fit.offset) {
            trackers.push((Role::Offset, Tracker::new(at)));
        }
        for (index, copy) in fit.copies.iter().enumerate() {
            trackers.push((Role::Copy(index), Tracker::new(&copy.at)));
            trackers.push((Role::Original(index), Tracker::new(&copy.of)));
        }
        Self {
            store: Store::new(fit.limit),
            trackers,
            places: Places::default(),
            path: None,
            key: Key::new(fit.longest_key()),
            in_key: false,
            capture: None,
            holder_has_marker: false,
            is_rpc: false,
            #[cfg(feature = "records")]
            has_method: false,
            #[cfg(feature = "records")]
            has_outcome: false,
            reads_on: false,
            is_id_next: false,
            id: None,
            settled: None,
            fit,
        }
    }

    /// The outcome that was settled first.
    fn first(&self, stop: Stop) -> Stop {
        let reason = self.settled.map_or(stop.reason, |settled| settled.reason);
        Stop { reason, ..stop }
    }

    /// Stops the scan, or goes on for the `id` of a message that has one.
    fn settle(&mut self, result: Result<(), Stop>) -> Result<(), Stop> {
        let reads_on = self.reads_on || (self.is_rpc && self.id.is_none());
        if let (Err(stop), true) = (result, reads_on) {
            self.store = Store::new(0);
            self.settled = Some(stop);
            return Ok(());
        }
        result
    }

    fn is_marker(&self, key: Option<&[u8]>) -> bool {
        let mut names = self.fit.markers().map(|(_, name)| name.as_bytes());
        key.is_some_and(|key| names.any(|name| name == key))
    }

    fn found(&mut self, role: Role, kind: Kind, depth: usize) {
        match (role, &self.fit.cut, kind) {
            (Role::Cut, Cut::Array(_) | Cut::LargestArray(_), Kind::Array) => {
                self.store.begin_array(depth);
            }
            (Role::Cut, Cut::LargestArray(_), Kind::Object) => {
                let mut has_marker = Levels::default();
                has_marker.push(depth, false);
                self.path = Some(Path {
                    outermost: depth,
                    innermost: depth,
                    has_marker,
                });
            }
            (Role::Cut, Cut::String(_), Kind::String) => self.store.begin_string(depth),
            (Role::Copy(copy), _, Kind::String) if self.store.is_fixed() => {
                self.places.copies.push(copy);
                self.store.begin_copy();
            }
            (Role::Original(copy), _, Kind::Object | Kind::Array) => {
                self.places.originals.push(copy);
            }
            (Role::Place, _, Kind::Object) => self.places.target = Some(Object::new(depth)),
            (Role::Place, ..) => self.places.misplaced = true,
            (Role::Offset, _, Kind::Other) => self.capture().is_offset = true,
            (Role::Offset, ..) => self.places.offset = Some(Err(UnfitReason::BadOffset)),
            _ => {}
        }
    }

    fn capture(&mut self) -> &mut Capture {
        self.capture.get_or_insert_with(|| Capture {
            text: Vec::new(),
            is_id: false,
            is_offset: false,
        })
    }

    fn captured(&mut self, capture: Capture) {
        let text = str::from_utf8(&capture.text).unwrap_or_default();
        if capture.is_id {
            let written = text == "null" || text.starts_with(['"', '-']) || is_digit(text);
            let written = written && !text.contains(|char| char < ' ');
            let fits = text.len() <= LONGEST_ID;
            self.id = Some((written && fits).then(|| text.into()));
        }
        if capture.is_offset && text != "null" {
            let number = text.parse().ok().filter(|_| is_digit(text));
            self.places.offset = Some(number.ok_or(UnfitReason::BadOffset));
        }
    }

    /// The array or string that may be cut was read, the last one if there are several.
    fn end_part(&mut self) {
        let holder = match &self.path {
            Some(path) => Some(path.innermost),
            None => self.tracker(Role::Cut).and_then(Tracker::holder),
        };
        self.places.holder = holder.map(|depth| Object {
            is_empty: false,
            ..Object::new(depth)
        });
    }

    /// Objects that take markers end where the document now is.
    fn end_object(&mut self, depth: usize) {
        let Places {
            holder,
            target,
            parent,
            ..
        } = &mut self.places;
        let is_here = |object: &&mut Object| object.depth == depth && object.end.is_none();
        if let Some(holder) = holder.as_mut().filter(is_here) {
            holder.has_marker = match &self.path {
                Some(path) => path.has_marker.get(depth),
                None => self.holder_has_marker,
            };
        }
        for object in [holder, target, parent].into_iter().flatten() {
            if is_here(&&mut *object) {
                object.end = Some(self.store.mark());
            }
        }
        match &mut self.path {
            Some(path) if path.innermost == depth && depth > path.outermost => path.innermost -= 1,
            Some(path) if path.innermost == depth => self.path = None,
            _ => {}
        }
    }

    fn tracker(&self, role: Role) -> Option<&Tracker> {
        let mut trackers = self.trackers.iter();
        trackers
            .find(|(of, _)| *of == role)
            .map(|(_, tracker)| tracker)
    }

    /// Whether an object at this depth, which has just begun, would hold what a pointer leads to.
    fn is_holder(&self, role: Role, depth: usize) -> bool {
        self.tracker(role).and_then(Tracker::holder) == Some(depth)
    }

    fn started(&mut self, kind: Kind, depth: usize) {
        if mem::take(&mut self.is_id_next) && matches!(kind, Kind::String | Kind::Other) {
            self.capture().is_id = true;
        }
        if self.settled.is_some() {
            return;
        }
        for index in 0..self.trackers.len() {
            let (role, tracker) = &mut self.trackers[index];
            if tracker.start(kind, depth) {
                let role = *role;
                self.found(role, kind, depth);
            }
        }
        if kind == Kind::Object && self.is_holder(Role::Place, depth) {
            self.places.parent = Some(Object::new(depth));
        }
        match (kind, &mut self.path) {
            (Kind::Object, Some(path)) => {
                path.innermost = depth;
                path.has_marker.push(depth, false);
            }
            (Kind::Array, Some(_)) => self.store.begin_array(depth),
            _ => {}
        }
    }

    fn ended(&mut self, depth: usize, at: u64) -> Result<(), Stop> {
        if let Some(capture) = self.capture.take() {
            self.captured(capture);
        }
        if let Some(settled) = self.settled {
            let goes_on = (self.reads_on || self.id.is_none()) && depth > 0;
            return if goes_on {
                Ok(())
            } else {
                Err(Stop { at, ..settled })
            };
        }
        match self.store.end(depth, at)? {
            Ended::Part => self.end_part(),
            Ended::Kept => {}
            Ended::Other => self.end_object(depth),
        }
        for (_, tracker) in &mut self.trackers {
            tracker.end(depth);
        }
        Ok(())
    }

    fn key_ended(&mut self, depth: usize, at: u64) -> Result<(), Stop> {
        let key = mem::replace(&mut self.key, Key::new(0));
        let result = self.key_is(key.get(), depth, at);
        self.key = key;
        result
    }

    fn key_is(&mut self, key: Option<&[u8]>, depth: usize, at: u64) -> Result<(), Stop> {
        if depth == 1 {
            self.is_id_next = key == Some(b"id") && self.id.is_none();
            self.is_rpc |= key == Some(b"jsonrpc");
            #[cfg(feature = "records")]
            {
                self.has_method |= key == Some(b"method");
                self.has_outcome |= matches!(key, Some(b"result" | b"error"));
            }
        }
        if self.settled.is_some() {
            return Ok(());
        }
        for (_, tracker) in &mut self.trackers {
            tracker.key(key, depth);
            if tracker.is_ambiguous() {
                self.store.set_ambiguous(at)?;
            }
        }
        let is_marker = self.is_marker(key);
        let within = |outer: usize| depth == outer + 1;
        self.holder_has_marker |= is_marker && self.is_holder(Role::Cut, depth - 1);
        if let Some(path) = self.path.as_mut().filter(|path| within(path.innermost)) {
            let has_marker = path.has_marker.get(path.innermost) || is_marker;
            path.has_marker.push(path.innermost, has_marker);
        }
        let Places { target, parent, .. } = &mut self.places;
        for object in [target, parent].into_iter().flatten() {
            if object.end.is_none() && within(object.depth) {
                object.is_empty = false;
                object.has_marker |= is_marker;
            }
        }
        Ok(())
    }
}

impl Sink for Work {
    fn watch(&self) -> usize {
        const TOP_LEVEL: usize = 2;
        if self.settled.is_some() {
            return TOP_LEVEL;
        }
        if let Some(array) = self.store.open_array() {
            return array + 1;
        }
        let trackers = self.trackers.iter().map(|(_, tracker)| tracker.watch());
        let path = self.path.iter().map(|path| path.innermost + 2);
        let target = self.places.target.iter();
        let target = target.filter(|target| target.end.is_none());
        let target = target.map(|target| target.depth + 2);
        let watch = trackers.chain(path).chain(target).max();
        watch.unwrap_or_default().max(TOP_LEVEL)
    }

    fn text(&mut self, text: &[u8], at: u64) -> Result<(), Stop> {
        if self.in_key {
            self.key.push(text);
        }
        if let Some(capture) = &mut self.capture {
            let room = (LONGEST_ID + 1).saturating_sub(capture.text.len());
            capture
                .text
                .extend_from_slice(&text[..text.len().min(room)]);
        }
        if self.settled.is_some() {
            return Ok(());
        }
        let result = self.store.text(text, at);
        self.settle(result)
    }

    fn start(&mut self, kind: Kind, depth: usize, _: u64) -> Result<(), Stop> {
        self.started(kind, depth);
        Ok(())
    }

    fn end(&mut self, depth: usize, at: u64) -> Result<(), Stop> {
        let result = self.ended(depth, at);
        if self.settled.is_some() {
            return result;
        }
        self.settle(result)
    }

    fn key_start(&mut self) {
        self.in_key = true;
        self.key.clear();
    }

    fn key_end(&mut self, depth: usize, at: u64) -> Result<(), Stop> {
        self.in_key = false;
        let result = self.key_ended(depth, at);
        self.settle(result)
    }

    fn wants_items(&self) -> bool {
        self.store.wants_items()
    }

    fn comma(&mut self) {
        self.store.comma();
    }
}

fn is_digit(text: &str) -> bool {
    text.starts_with(|char: char| char.is_ascii_digit())
}

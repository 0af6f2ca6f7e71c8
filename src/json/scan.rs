use memchr::memchr2;

use super::report::UnfitReason;

/// What kind of value begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Object,
    Array,
    String,
    /// A number or a literal.
    Other,
}

/// Why and where the scan is over: `at` bytes had been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stop {
    pub(super) reason: UnfitReason,
    pub(super) at: u64,
}

/// Somebody who listens to a scan.
///
/// The text of the document comes without its insignificant whitespace and in order, cut anywhere.
/// The other calls come in between, at the place they are about; those about values and keys only
/// where fewer than [`watch`](Self::watch) objects and arrays are open around them. A byte's `at` is
/// the number of bytes before it.
pub(super) trait Sink {
    fn watch(&self) -> usize;

    fn text(&mut self, text: &[u8], at: u64) -> Result<(), Stop>;

    /// Before the first byte of a scalar, after the bracket of an object or array.
    fn start(&mut self, kind: Kind, depth: usize, at: u64) -> Result<(), Stop>;

    /// After the last byte of a scalar, before the bracket of an object or array.
    fn end(&mut self, depth: usize, at: u64) -> Result<(), Stop>;

    /// Inside the quotes of a key, at its start.
    fn key_start(&mut self);

    /// Inside the quotes of a key, at its end.
    fn key_end(&mut self, depth: usize, at: u64) -> Result<(), Stop>;

    /// Whether the text before the next [`comma`](Self::comma) is wanted first.
    fn wants_items(&self) -> bool;

    /// A comma in an object or array at depth [`watch`](Self::watch), its items unwatched.
    fn comma(&mut self);
}

/// What may come next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The document, or a byte order mark before it.
    Begin,
    /// So many bytes of the byte order mark.
    Mark(usize),
    Value,
    /// An item or `]`.
    FirstItem,
    /// A key or `}`.
    FirstKey,
    Key,
    Colon,
    /// A comma, a closing bracket, or nothing any more.
    After,
    InString,
    Escape,
    /// So many hexadecimal digits of an escape.
    Hex(u8),
    Minus,
    Zero,
    Integer,
    Point,
    Fraction,
    Exponent,
    ExponentSign,
    ExponentDigits,
    /// The rest of `true`, `false` or `null`.
    Literal(&'static [u8]),
}

const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// A scanner of JSON (RFC 8259) that is fed chunks cut anywhere.
///
/// Checks structure, numbers, literals and escapes. Keeps one bit for each level of depth and no part
/// of the text, so it looks at every byte once, however the text is cut. What it does not check is
/// inside strings: control characters and UTF-8. A byte order mark is taken for whitespace.
#[derive(Debug)]
pub(super) struct Scanner {
    state: State,
    in_key: bool,
    /// Whether the innermost open bracket is that of an object.
    in_object: bool,
    outer: Levels,
    depth: usize,
    max_depth: usize,
    read: u64,
}

impl Scanner {
    pub(super) fn new(max_depth: usize) -> Self {
        Self {
            state: State::Begin,
            in_key: false,
            in_object: false,
            outer: Levels::default(),
            depth: 0,
            max_depth,
            read: 0,
        }
    }

    /// How many bytes it was fed.
    pub(super) fn read(&self) -> u64 {
        self.read
    }

    /// Scans one chunk. Not to be called again after an error.
    pub(super) fn feed<S: Sink>(&mut self, chunk: &[u8], sink: &mut S) -> Result<(), Stop> {
        let base = self.read;
        let mut state = self.state;
        let mut watch = sink.watch();
        let mut at = 0;
        // Where the text begins that the sink has not got.
        let mut from = 0;

        macro_rules! position {
            () => {
                base.saturating_add(at as u64)
            };
        }
        macro_rules! pass {
            () => {
                if from < at {
                    sink.text(&chunk[from..at], base.saturating_add(from as u64))?;
                }
            };
        }
        macro_rules! flush {
            () => {
                pass!();
                from = at;
            };
        }
        // The text before it goes first: it may settle the outcome, and must do so in every chunking.
        macro_rules! stop {
            ($reason:expr) => {{
                pass!();
                return Err(Stop {
                    reason: $reason,
                    at: position!().saturating_add(1),
                });
            }};
        }
        macro_rules! token {
            ($scan:lifetime) => {
                loop {
                    match chunk.get(at) {
                        None => break $scan,
                        Some(b' ' | b'\n' | b'\r' | b'\t') => {
                            pass!();
                            at = after_space(chunk, at);
                            from = at;
                        }
                        Some(&byte) => break byte,
                    }
                }
            };
        }
        macro_rules! started {
            ($kind:expr) => {
                if self.depth < watch {
                    flush!();
                    sink.start($kind, self.depth, position!())?;
                    watch = sink.watch();
                }
            };
        }
        macro_rules! ended {
            () => {
                if self.depth < watch {
                    flush!();
                    sink.end(self.depth, position!())?;
                    watch = sink.watch();
                }
            };
        }
        macro_rules! open {
            ($kind:expr) => {{
                if self.depth == self.max_depth {
                    stop!(UnfitReason::TooDeep);
                }
                at += 1;
                started!($kind);
                self.outer.push(self.depth, self.in_object);
                self.depth += 1;
                self.in_object = $kind == Kind::Object;
            }};
        }
        macro_rules! close {
            () => {{
                self.depth -= 1;
                ended!();
                self.in_object = self.outer.get(self.depth);
                at += 1;
                State::After
            }};
        }
        macro_rules! key {
            () => {{
                at += 1;
                self.in_key = true;
                if self.depth < watch {
                    flush!();
                    sink.key_start();
                }
                State::InString
            }};
        }

        'scan: loop {
            state = match state {
                State::Begin => match chunk.get(at) {
                    None => break 'scan,
                    Some(&byte) if byte == BYTE_ORDER_MARK[0] => State::Mark(0),
                    Some(_) => State::Value,
                },
                State::Mark(seen) => match chunk.get(at) {
                    None => break 'scan,
                    Some(&byte) if byte == BYTE_ORDER_MARK[seen] => {
                        at += 1;
                        from = at;
                        if seen + 1 < BYTE_ORDER_MARK.len() {
                            State::Mark(seen + 1)
                        } else {
                            State::Value
                        }
                    }
                    Some(_) => stop!(UnfitReason::Malformed),
                },
                State::Value => match token!('scan) {
                    b'"' => {
                        started!(Kind::String);
                        at += 1;
                        self.in_key = false;
                        State::InString
                    }
                    b'{' => {
                        open!(Kind::Object);
                        State::FirstKey
                    }
                    b'[' => {
                        open!(Kind::Array);
                        State::FirstItem
                    }
                    byte => {
                        let next = match byte {
                            b'1'..=b'9' => State::Integer,
                            b'0' => State::Zero,
                            b'-' => State::Minus,
                            b't' => State::Literal(b"rue"),
                            b'f' => State::Literal(b"alse"),
                            b'n' => State::Literal(b"ull"),
                            _ => stop!(UnfitReason::Malformed),
                        };
                        started!(Kind::Other);
                        at += 1;
                        next
                    }
                },
                State::FirstItem => match token!('scan) {
                    b']' => close!(),
                    _ => State::Value,
                },
                State::FirstKey => match token!('scan) {
                    b'"' => key!(),
                    b'}' => close!(),
                    _ => stop!(UnfitReason::Malformed),
                },
                State::Key => match token!('scan) {
                    b'"' => key!(),
                    _ => stop!(UnfitReason::Malformed),
                },
                State::Colon => match token!('scan) {
                    b':' => {
                        at += 1;
                        State::Value
                    }
                    _ => stop!(UnfitReason::Malformed),
                },
                State::After => match token!('scan) {
                    _ if self.depth == 0 => stop!(UnfitReason::TrailingData),
                    b',' => {
                        if self.depth == watch {
                            if sink.wants_items() {
                                flush!();
                            }
                            sink.comma();
                        }
                        at += 1;
                        if self.in_object {
                            State::Key
                        } else {
                            State::Value
                        }
                    }
                    b'}' if self.in_object => close!(),
                    b']' if !self.in_object => close!(),
                    _ => stop!(UnfitReason::Malformed),
                },
                State::InString => {
                    at = string_stop(chunk, at);
                    match chunk.get(at) {
                        None => break 'scan,
                        Some(b'"') if self.in_key => {
                            if self.depth < watch {
                                flush!();
                                sink.key_end(self.depth, position!())?;
                                watch = sink.watch();
                            }
                            at += 1;
                            State::Colon
                        }
                        Some(b'"') => {
                            at += 1;
                            ended!();
                            State::After
                        }
                        Some(_) => {
                            at += 1;
                            State::Escape
                        }
                    }
                }
                State::Escape => match chunk.get(at) {
                    None => break 'scan,
                    Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                        at += 1;
                        State::InString
                    }
                    Some(b'u') => {
                        at += 1;
                        State::Hex(0)
                    }
                    Some(_) => stop!(UnfitReason::Malformed),
                },
                State::Hex(seen) => match chunk.get(at) {
                    None => break 'scan,
                    Some(byte) if byte.is_ascii_hexdigit() => {
                        at += 1;
                        if seen == 3 {
                            State::InString
                        } else {
                            State::Hex(seen + 1)
                        }
                    }
                    Some(_) => stop!(UnfitReason::Malformed),
                },
                State::Minus => match chunk.get(at) {
                    None => break 'scan,
                    Some(b'0') => {
                        at += 1;
                        State::Zero
                    }
                    Some(b'1'..=b'9') => State::Integer,
                    Some(_) => stop!(UnfitReason::Malformed),
                },
                State::Zero | State::Integer => {
                    if state == State::Integer {
                        at = after_digits(chunk, at);
                    }
                    match chunk.get(at) {
                        None => break 'scan,
                        Some(b'.') => {
                            at += 1;
                            State::Point
                        }
                        Some(b'e' | b'E') => {
                            at += 1;
                            State::Exponent
                        }
                        Some(_) => {
                            ended!();
                            State::After
                        }
                    }
                }
                State::Point => match chunk.get(at) {
                    None => break 'scan,
                    Some(b'0'..=b'9') => State::Fraction,
                    Some(_) => stop!(UnfitReason::Malformed),
                },
                State::Fraction => {
                    at = after_digits(chunk, at);
                    match chunk.get(at) {
                        None => break 'scan,
                        Some(b'e' | b'E') => {
                            at += 1;
                            State::Exponent
                        }
                        Some(_) => {
                            ended!();
                            State::After
                        }
                    }
                }
                State::Exponent => match chunk.get(at) {
                    None => break 'scan,
                    Some(b'+' | b'-') => {
                        at += 1;
                        State::ExponentSign
                    }
                    Some(b'0'..=b'9') => State::ExponentDigits,
                    Some(_) => stop!(UnfitReason::Malformed),
                },
                State::ExponentSign => match chunk.get(at) {
                    None => break 'scan,
                    Some(b'0'..=b'9') => State::ExponentDigits,
                    Some(_) => stop!(UnfitReason::Malformed),
                },
                State::ExponentDigits => {
                    at = after_digits(chunk, at);
                    if at == chunk.len() {
                        break 'scan;
                    }
                    ended!();
                    State::After
                }
                State::Literal(rest) => match (rest.split_first(), chunk.get(at)) {
                    (None, _) => {
                        ended!();
                        State::After
                    }
                    (_, None) => break 'scan,
                    (Some((first, rest)), Some(byte)) if first == byte => {
                        at += 1;
                        State::Literal(rest)
                    }
                    _ => stop!(UnfitReason::Malformed),
                },
            };
        }
        pass!();
        self.state = state;
        self.read = position!();
        debug_assert_eq!(at, chunk.len(), "all of it is scanned");
        Ok(())
    }

    /// The end of the input.
    pub(super) fn finish<S: Sink>(&mut self, sink: &mut S) -> Result<(), Stop> {
        match self.state {
            State::After if self.depth == 0 => Ok(()),
            // A number or a literal at the top has no byte that ends it.
            State::Zero
            | State::Integer
            | State::Fraction
            | State::ExponentDigits
            | State::Literal(b"")
                if self.depth == 0 =>
            {
                sink.end(0, self.read)?;
                self.state = State::After;
                Ok(())
            }
            _ => Err(Stop {
                reason: UnfitReason::Malformed,
                at: self.read,
            }),
        }
    }
}

fn after_space(chunk: &[u8], mut at: usize) -> usize {
    const SPACES: [u8; 8] = [b' '; 8];
    while let Some(&byte) = chunk.get(at) {
        match byte {
            b' ' if chunk[at..].starts_with(&SPACES) => at += SPACES.len(),
            b' ' | b'\n' | b'\r' | b'\t' => at += 1,
            _ => break,
        }
    }
    at
}

fn after_digits(chunk: &[u8], mut at: usize) -> usize {
    while chunk.get(at).is_some_and(u8::is_ascii_digit) {
        at += 1;
    }
    at
}

/// The next quote or backslash, or the end of the chunk.
///
/// Most strings are short, and a call of memchr costs more than they do.
fn string_stop(chunk: &[u8], mut at: usize) -> usize {
    const ONES: u64 = u64::from_ne_bytes([0x01; 8]);
    const HIGHS: u64 = u64::from_ne_bytes([0x80; 8]);
    const QUOTES: u64 = u64::from_ne_bytes([b'"'; 8]);
    const BACKSLASHES: u64 = u64::from_ne_bytes([b'\\'; 8]);
    // The lowest high bit that it leaves is that of the first zero byte.
    let zeros = |word: u64| word.wrapping_sub(ONES) & !word & HIGHS;
    for _ in 0..4 {
        let Some(word) = chunk[at..].first_chunk() else {
            break;
        };
        let word = u64::from_le_bytes(*word);
        let found = zeros(word ^ QUOTES) | zeros(word ^ BACKSLASHES);
        if found != 0 {
            return at + found.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    memchr2(b'"', b'\\', &chunk[at..]).map_or(chunk.len(), |found| at + found)
}

/// One bit for each level of depth.
#[derive(Debug, Default)]
pub(super) struct Levels(Vec<u64>);

impl Levels {
    /// Sets the bit of a level; those above it are forgotten.
    pub(super) fn push(&mut self, level: usize, bit: bool) {
        let (word, shift) = (level / 64, level % 64);
        while self.0.len() <= word {
            self.0.push(0);
        }
        if let Some(word) = self.0.get_mut(word) {
            *word = *word & !(1 << shift) | u64::from(bit) << shift;
        }
    }

    pub(super) fn get(&self, level: usize) -> bool {
        let (word, shift) = (level / 64, level % 64);
        self.0.get(word).is_some_and(|word| word >> shift & 1 == 1)
    }
}

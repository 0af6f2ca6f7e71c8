use std::{fmt, mem, str::FromStr};

use super::scan::Kind;

/// A place in a JSON document: a JSON Pointer (RFC 6901).
///
/// A `Pointer` is made from a string literal, or from any other text by [`str::parse`]. Keys are
/// compared character by character after their escapes were resolved, in the document and in the
/// pointer. `-`, the place after an array's end, is never found.
///
/// # Panics
///
/// Making one from a literal that is no pointer panics. Parsing returns the error instead.
///
/// # Examples
///
/// ```
/// use tower_body_limit::json::Pointer;
///
/// let items = Pointer::from("/result/structuredContent/items");
/// assert_eq!(items.to_string(), "/result/structuredContent/items");
///
/// let key = "a/b";
/// let escaped = format!("/{}", key.replace('~', "~0").replace('/', "~1"));
/// assert_eq!(escaped.parse::<Pointer>().unwrap().to_string(), "/a~1b");
/// assert!("result".parse::<Pointer>().is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pointer {
    tokens: Box<[Box<str>]>,
}

/// A text that is no JSON Pointer: it does not begin with `/`, or has a `~` that is not `~0` or `~1`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a JSON Pointer: {text:?}")]
pub struct PointerError {
    text: String,
}

impl Pointer {
    pub(super) fn tokens(&self) -> &[Box<str>] {
        &self.tokens
    }
}

impl FromStr for Pointer {
    type Err = PointerError;

    fn from_str(text: &str) -> Result<Self, PointerError> {
        let error = || PointerError {
            text: text.to_owned(),
        };
        if text.is_empty() {
            return Ok(Self {
                tokens: Box::default(),
            });
        }
        let tokens = text.strip_prefix('/').ok_or_else(error)?.split('/');
        let tokens = tokens.map(unescape).collect::<Option<_>>();
        Ok(Self {
            tokens: tokens.ok_or_else(error)?,
        })
    }
}

impl From<&'static str> for Pointer {
    fn from(literal: &'static str) -> Self {
        literal.parse().unwrap_or_else(|error| panic!("{error}"))
    }
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tokens
            .iter()
            .try_for_each(|token| write!(f, "/{}", token.replace('~', "~0").replace('/', "~1")))
    }
}

fn unescape(token: &str) -> Option<Box<str>> {
    let mut parts = token.split('~');
    let mut text = String::from(parts.next()?);
    for part in parts {
        text.push(match part.as_bytes().first()? {
            b'0' => '~',
            b'1' => '/',
            _ => return None,
        });
        text.push_str(&part[1..]);
    }
    Some(text.into())
}

/// How far a scan has come towards the value at a pointer.
///
/// A value has as many tokens as objects and arrays around it. The open ones that are on the way are
/// a prefix of those that are open.
#[derive(Debug)]
pub(super) struct Tracker {
    pointer: Pointer,
    open: Vec<Level>,
    /// Whether the member whose key was just read is on the way.
    hit: bool,
    ambiguous: bool,
}

/// An object or array on the way.
#[derive(Debug)]
struct Level {
    kind: Kind,
    /// The index of the next item.
    index: u64,
    /// Whether the wanted member has been there.
    seen: bool,
}

impl Tracker {
    pub(super) fn new(pointer: &Pointer) -> Self {
        Self {
            pointer: pointer.clone(),
            open: Vec::new(),
            hit: false,
            ambiguous: false,
        }
    }

    /// Whether a key on the way came twice.
    pub(super) fn is_ambiguous(&self) -> bool {
        self.ambiguous
    }

    /// How many objects and arrays may be open around what is still to be looked at.
    pub(super) fn watch(&self) -> usize {
        self.open.len() + 1
    }

    /// Whether the object that would hold the value is open, and in how many others it is.
    pub(super) fn holder(&self) -> Option<usize> {
        let parent = self.open.last()?;
        let is_last = self.open.len() == self.pointer.tokens.len();
        (is_last && parent.kind == Kind::Object).then(|| self.open.len() - 1)
    }

    /// Whether the value that starts is the one at the pointer.
    pub(super) fn start(&mut self, kind: Kind, depth: usize) -> bool {
        if depth != self.open.len() {
            return false;
        }
        let tokens = &self.pointer.tokens;
        let hit = match (self.open.last_mut(), depth.checked_sub(1)) {
            (Some(parent), Some(level)) if parent.kind == Kind::Array => {
                let hit = !parent.seen && is_index(&tokens[level], parent.index);
                parent.index = parent.index.saturating_add(1);
                parent.seen |= hit;
                hit
            }
            (Some(_), _) => mem::take(&mut self.hit),
            (None, _) => true,
        };
        if hit && depth < tokens.len() && matches!(kind, Kind::Object | Kind::Array) {
            self.open.push(Level {
                kind,
                index: 0,
                seen: false,
            });
        }
        hit && depth == tokens.len()
    }

    pub(super) fn end(&mut self, depth: usize) {
        if depth + 1 == self.open.len() {
            self.open.pop();
        }
    }

    pub(super) fn key(&mut self, key: Option<&[u8]>, depth: usize) {
        if depth != self.open.len() {
            return;
        }
        let token = depth
            .checked_sub(1)
            .and_then(|level| self.pointer.tokens.get(level));
        let (Some(parent), Some(token)) = (self.open.last_mut(), token) else {
            return;
        };
        let hit = key == Some(token.as_bytes());
        self.ambiguous |= hit && parent.seen;
        // The first one counts.
        self.hit = hit && !parent.seen;
        parent.seen |= hit;
    }
}

/// Whether a token is the canonical number of an index.
fn is_index(token: &str, index: u64) -> bool {
    let canonical = token == "0" || !token.starts_with('0');
    canonical && token.bytes().all(|byte| byte.is_ascii_digit()) && token.parse() == Ok(index)
}

/// The key that is being read, its escapes resolved, as far as it can be one that is looked for.
#[derive(Debug)]
pub(super) struct Key {
    text: Vec<u8>,
    longest: usize,
    state: KeyState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyState {
    Plain {
        high: Option<u16>,
    },
    Escape {
        high: Option<u16>,
    },
    Hex {
        high: Option<u16>,
        seen: u8,
        unit: u16,
    },
    /// Longer than any key that is looked for, or not Unicode text.
    Other,
}

impl Key {
    /// For keys of at most `longest` bytes.
    pub(super) fn new(longest: usize) -> Self {
        Self {
            text: Vec::new(),
            longest,
            state: KeyState::Plain { high: None },
        }
    }

    pub(super) fn clear(&mut self) {
        self.text.clear();
        self.state = KeyState::Plain { high: None };
    }

    /// `None` for a key that is none of those looked for.
    pub(super) fn get(&self) -> Option<&[u8]> {
        (self.state == KeyState::Plain { high: None }).then_some(&*self.text)
    }

    /// Reads a part of the key as it is written. Its escapes are well formed.
    pub(super) fn push(&mut self, written: &[u8]) {
        for &byte in written {
            self.state = match self.state {
                KeyState::Other => return,
                KeyState::Plain { high } if byte == b'\\' => KeyState::Escape { high },
                KeyState::Escape { high } if byte == b'u' => KeyState::Hex {
                    high,
                    seen: 0,
                    unit: 0,
                },
                // A high surrogate without its low one is no character.
                KeyState::Plain { high: Some(_) } | KeyState::Escape { high: Some(_) } => {
                    KeyState::Other
                }
                KeyState::Plain { high: None } => self.add(&[byte]),
                KeyState::Escape { high: None } => self.add(&[match byte {
                    b'b' => 0x08,
                    b'f' => 0x0C,
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    other => other,
                }]),
                KeyState::Hex { high, seen, unit } => {
                    let digit = char::from(byte).to_digit(16).unwrap_or_default() as u16;
                    let unit = unit << 4 | digit;
                    match seen {
                        0..=2 => KeyState::Hex {
                            high,
                            seen: seen + 1,
                            unit,
                        },
                        _ => self.add_unit(high, unit),
                    }
                }
            };
        }
    }

    fn add_unit(&mut self, high: Option<u16>, unit: u16) -> KeyState {
        if high.is_none() && (0xD800..0xDC00).contains(&unit) {
            return KeyState::Plain { high: Some(unit) };
        }
        let (mut units, mut utf8) = (high.into_iter().chain([unit]), [0; 4]);
        let mut chars = char::decode_utf16(&mut units);
        match (chars.next(), chars.next()) {
            (Some(Ok(char)), None) => self.add(char.encode_utf8(&mut utf8).as_bytes()),
            _ => KeyState::Other,
        }
    }

    fn add(&mut self, bytes: &[u8]) -> KeyState {
        if bytes.len() > self.longest - self.text.len() {
            return KeyState::Other;
        }
        self.text.extend_from_slice(bytes);
        KeyState::Plain { high: None }
    }
}

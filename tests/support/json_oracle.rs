//! What fitting a JSON document has to come to, found out slowly: the whole tree, every number of
//! items, every end of a string.

#![allow(dead_code, missing_docs, unreachable_pub)]

/// A document, its scalars and keys as they are written.
#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    Scalar(String),
    Array(Vec<Node>),
    Object(Vec<(String, Node)>),
}

#[derive(Clone, Debug, PartialEq)]
pub enum Cut {
    Nothing,
    Array(Vec<String>),
    Largest(Vec<String>),
    String(Vec<String>),
}

#[derive(Clone, Debug, PartialEq)]
pub enum Place {
    Default,
    At(Vec<String>),
    Headers,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    pub cut: Cut,
    /// And what they are copies of.
    pub copies: Vec<(Vec<String>, Vec<String>)>,
    pub place: Place,
    pub note: Option<String>,
    pub total: bool,
    pub offset: Option<u64>,
    pub offset_at: Option<Vec<String>>,
}

pub fn pointer(tokens: &[String]) -> String {
    let escaped = tokens
        .iter()
        .map(|token| token.replace('~', "~0").replace('/', "~1"));
    escaped.map(|token| format!("/{token}")).collect()
}

impl Node {
    /// Of a valid document.
    pub fn parse(text: &str) -> Self {
        let mut rest = text.trim_start_matches('\u{feff}');
        let node = parse(&mut rest);
        assert_eq!(rest.trim(), "");
        node
    }

    pub fn write(&self) -> String {
        match self {
            Self::Scalar(written) => written.clone(),
            Self::Array(items) => {
                let items: Vec<_> = items.iter().map(Self::write).collect();
                format!("[{}]", items.join(","))
            }
            Self::Object(members) => {
                let member = |(key, value): &(String, Node)| format!("{key}:{}", value.write());
                let members: Vec<_> = members.iter().map(member).collect();
                format!("{{{}}}", members.join(","))
            }
        }
    }

    pub fn at(&self, path: &[usize]) -> &Self {
        path.iter().fold(self, |node, &index| match node {
            Self::Array(items) => &items[index],
            Self::Object(members) => &members[index].1,
            Self::Scalar(_) => panic!("no such path"),
        })
    }

    pub fn at_mut(&mut self, path: &[usize]) -> &mut Self {
        path.iter().fold(self, |node, &index| match node {
            Self::Array(items) => &mut items[index],
            Self::Object(members) => &mut members[index].1,
            Self::Scalar(_) => panic!("no such path"),
        })
    }
}

fn parse(rest: &mut &str) -> Node {
    *rest = rest.trim_start();
    let first = rest.as_bytes()[0];
    if first != b'[' && first != b'{' {
        return Node::Scalar(scalar(rest));
    }
    let (mut items, mut members) = (Vec::new(), Vec::new());
    loop {
        // The bracket, or a comma.
        *rest = rest[1..].trim_start();
        if rest.starts_with([']', '}']) {
            break;
        }
        if first == b'[' {
            items.push(parse(rest));
        } else {
            let key = scalar(rest);
            *rest = rest.trim_start().strip_prefix(':').unwrap();
            members.push((key, parse(rest)));
        }
        *rest = rest.trim_start();
        if rest.starts_with([']', '}']) {
            break;
        }
    }
    *rest = &rest[1..];
    if first == b'[' {
        Node::Array(items)
    } else {
        Node::Object(members)
    }
}

fn scalar(rest: &mut &str) -> String {
    let end = if rest.starts_with('"') {
        let (mut end, mut escaped) = (1, false);
        for byte in rest.bytes().skip(1) {
            end += 1;
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => break,
                _ => {}
            }
        }
        end
    } else {
        rest.find([',', ']', '}', ' ', '\n', '\r', '\t', ':'])
            .unwrap_or(rest.len())
    };
    let written = rest[..end].to_owned();
    *rest = &rest[end..];
    written
}

fn key_is(written: &str, token: &str) -> bool {
    serde_json::from_str::<String>(written).is_ok_and(|key| key == token)
}

/// Where a pointer leads, and whether a key came twice on the way. What is in the arrays is not looked
/// at.
fn find(root: &Node, tokens: &[String], arrays: &[Vec<usize>]) -> (Option<Vec<usize>>, bool) {
    let (mut path, mut node, mut ambiguous) = (Vec::new(), root, false);
    for token in tokens {
        if arrays.contains(&path) {
            return (None, ambiguous);
        }
        let index = match node {
            Node::Scalar(_) => None,
            Node::Array(items) => {
                let canonical = token == "0" || !token.starts_with(['0', '+']);
                let index = token.parse::<usize>().ok().filter(|_| canonical);
                index.filter(|&index| index < items.len())
            }
            Node::Object(members) => {
                let hits = members.iter().filter(|(key, _)| key_is(key, token)).count();
                ambiguous |= hits > 1;
                members.iter().position(|(key, _)| key_is(key, token))
            }
        };
        let Some(index) = index else {
            return (None, ambiguous);
        };
        path.push(index);
        node = root.at(&path);
    }
    (Some(path), ambiguous)
}

/// The arrays that are reached through objects alone.
fn candidates(node: &Node, path: &[usize], found: &mut Vec<Vec<usize>>) {
    match node {
        Node::Scalar(_) => {}
        Node::Array(_) => found.push(path.to_vec()),
        Node::Object(members) => {
            for (index, (_, value)) in members.iter().enumerate() {
                candidates(value, &[path, &[index]].concat(), found);
            }
        }
    }
}

pub const COPY: &str = "Left out: the structured content says the same.";

fn render(template: &str, kept: u64, total: u64, next_offset: u64) -> String {
    let text = template
        .replace("{kept}", &kept.to_string())
        .replace("{total}", &total.to_string())
        .replace("{dropped}", &(total - kept).to_string())
        .replace("{next_offset}", &next_offset.to_string());
    let quoted = serde_json::to_string(&text).unwrap();
    quoted[1..quoted.len() - 1].to_owned()
}

/// The document that has to come out, or the reasons there may be.
pub fn fit(text: &str, spec: &Spec, limit: u64) -> Result<String, Vec<&'static str>> {
    if text.len() as u64 <= limit {
        return Ok(text.to_owned());
    }
    let root = Node::parse(text);
    let fits = |text: &str| text.len() as u64 <= limit;
    if fits(&root.write()) {
        return Ok(root.write());
    }

    let mut ambiguous = false;
    let mut lookup = |tokens: &[String], arrays: &[Vec<usize>]| {
        let (path, twice) = find(&root, tokens, arrays);
        ambiguous |= twice;
        path
    };
    let mut arrays = Vec::new();
    let part = match &spec.cut {
        Cut::Nothing => None,
        Cut::Array(tokens) => lookup(tokens, &[]).filter(|path| {
            let is_array = matches!(root.at(path), Node::Array(_));
            arrays.extend(is_array.then(|| path.clone()));
            is_array
        }),
        Cut::Largest(tokens) => {
            if let Some(scope) = lookup(tokens, &[]) {
                candidates(root.at(&scope), &scope, &mut arrays);
            }
            let len = |path: &&Vec<usize>| root.at(path).write().len();
            // `max_by_key` takes the last one.
            arrays.iter().rev().max_by_key(len).cloned()
        }
        Cut::String(tokens) => lookup(tokens, &[]).filter(
            |path| matches!(root.at(path), Node::Scalar(written) if written.starts_with('"')),
        ),
    };
    let cuts_string = matches!(spec.cut, Cut::String(_));
    let place = match (&spec.place, &spec.cut) {
        (_, Cut::Nothing) => Place::Headers,
        (Place::Default, Cut::String(_)) => Place::Headers,
        (place, _) => place.clone(),
    };
    let is_string =
        |path: &Vec<usize>| matches!(root.at(path), Node::Scalar(text) if text.starts_with('"'));
    let (mut copies, mut has_originals) = (Vec::new(), true);
    for (copy, original) in &spec.copies {
        let copy = lookup(copy, &arrays).filter(is_string);
        let copy = copy.filter(|copy| !cuts_string || Some(copy) != part.as_ref());
        let original = lookup(original, &arrays);
        let has = original.is_some_and(|path| !matches!(root.at(&path), Node::Scalar(_)));
        // The first one that names a string counts.
        if let Some(copy) = copy.filter(|copy| !copies.contains(copy)) {
            copies.push(copy);
            has_originals &= has;
        }
    }
    let offset = match (spec.offset, &spec.offset_at) {
        (Some(offset), _) => Some(offset),
        (None, None) => Some(0),
        (None, Some(tokens)) => match lookup(tokens, &arrays) {
            None => Some(0),
            Some(path) => match root.at(&path).write() {
                null if null == "null" => Some(0),
                number if number.starts_with('-') => None,
                number => number.parse().ok(),
            },
        },
    };
    let target = match &place {
        Place::At(tokens) => lookup(tokens, &arrays),
        _ => None,
    };
    let parent = match &place {
        Place::At(tokens) if !tokens.is_empty() => {
            find(&root, &tokens[..tokens.len() - 1], &arrays).0
        }
        _ => None,
    };
    let parent = parent.filter(|path| matches!(root.at(path), Node::Object(_)));
    if ambiguous {
        return Err(vec!["Ambiguous", "TooLarge", "NothingKept"]);
    }

    if !has_originals {
        return Err(vec!["TooLarge", "NothingKept"]);
    }

    let with_copies = |text: &str| {
        let mut changed = root.clone();
        for copy in &copies {
            *changed.at_mut(copy) = Node::Scalar(text.to_owned());
        }
        changed
    };
    let without_copies = with_copies(&format!("\"{COPY}\"")).write();
    if fits(&without_copies) {
        return Ok(without_copies);
    }
    let part = part.filter(|path| *root.at(path) != Node::Array(Vec::new()));
    let Some(part) = part else {
        return Err(vec!["TooLarge"]);
    };

    // What is settled before anything is said.
    let mut around = with_copies("");
    *around.at_mut(&part) = Node::Scalar("\0".to_owned());
    let around = around.write();
    let (head, tail) = around.split_once('\0').unwrap();
    let (head, fixed) = if cuts_string {
        (head.len(), head.len() + tail.len())
    } else {
        (head.len() + 1, head.len() + tail.len() + 2)
    };
    let least = match root.at(&part) {
        Node::Array(items) => items[0].write().len(),
        _ => 2,
    };
    let any = matches!(spec.cut, Cut::Largest(_));
    if head as u64 > limit || (fixed + least) as u64 > limit {
        return Err(match (any, head as u64 > limit) {
            (true, _) => vec!["TooLarge", "NothingKept"],
            (_, true) => vec!["TooLarge"],
            _ if root.at(&part).write() == "\"\"" => vec!["TooLarge", "NothingKept"],
            _ => vec!["NothingKept"],
        });
    }
    if *root.at(&part) == Node::Scalar("\"\"".to_owned()) {
        return Err(vec!["TooLarge"]);
    }
    let or_early = |reason| {
        if any {
            vec![reason, "TooLarge", "NothingKept"]
        } else {
            vec![reason]
        }
    };

    // Where the markers go.
    let names = |members: &[(String, Node)]| {
        let mut names = vec!["truncated", "cap_reason"];
        if !cuts_string {
            names.push("next_offset");
            names.extend(spec.total.then_some("total"));
            names.extend(spec.note.as_ref().map(|_| "note"));
        }
        members
            .iter()
            .any(|(key, _)| names.iter().any(|name| key_is(key, name)))
    };
    let target = match &place {
        Place::Headers => None,
        Place::Default => match part
            .split_last()
            .map(|(_, holder)| (holder, root.at(holder)))
        {
            Some((holder, Node::Object(members))) => {
                if names(members) {
                    return Err(or_early("MarkerTaken"));
                }
                Some((holder.to_vec(), None))
            }
            _ => return Err(or_early("NoPlace")),
        },
        Place::At(tokens) => match (target, parent) {
            (Some(target), _) => match root.at(&target) {
                Node::Object(members) if names(members) => return Err(or_early("MarkerTaken")),
                Node::Object(_) => Some((target, None)),
                _ => return Err(or_early("NoPlace")),
            },
            (None, Some(parent)) => Some((parent, tokens.last())),
            (None, None) => return Err(or_early("NoPlace")),
        },
    };

    let finish = |value: Node, kept: u64, total: u64, next_offset: u64| {
        let copy = spec.note.as_deref().unwrap_or(COPY);
        let copy = format!("\"{}\"", render(copy, kept, total, next_offset));
        let mut changed = with_copies(&copy);
        *changed.at_mut(&part) = value;
        let Some((target, new)) = &target else {
            return changed.write();
        };
        let Node::Object(members) = changed.at_mut(target) else {
            panic!("no object");
        };
        let mut markers = vec![("truncated", "true".to_owned())];
        if !cuts_string {
            markers.push(("next_offset", next_offset.to_string()));
        }
        markers.push(("cap_reason", "\"size_limit\"".to_owned()));
        if !cuts_string {
            markers.extend(spec.total.then(|| ("total", total.to_string())));
            let note = spec.note.as_deref();
            let note = note.map(|note| render(note, kept, total, next_offset));
            markers.extend(note.map(|note| ("note", format!("\"{note}\""))));
        }
        let markers = markers.into_iter();
        let markers = markers.map(|(name, value)| (format!("\"{name}\""), Node::Scalar(value)));
        match new {
            Some(name) => {
                let key = serde_json::to_string(name).unwrap();
                members.push((key, Node::Object(markers.collect())));
            }
            None => members.extend(markers),
        }
        changed.write()
    };

    match root.at(&part) {
        Node::Array(items) => {
            let total = items.len() as u64;
            let Some(offset) = offset.filter(|offset| offset.checked_add(total).is_some()) else {
                return Err(or_early("BadOffset"));
            };
            for kept in (1..items.len()).rev() {
                let value = Node::Array(items[..kept].to_vec());
                let text = finish(value, kept as u64, total, offset + kept as u64);
                if fits(&text) {
                    return Ok(text);
                }
            }
            Err(or_early("NothingKept"))
        }
        Node::Scalar(written) => {
            let body = &written[1..written.len() - 1];
            let total = body.len() as u64;
            let note = spec
                .note
                .as_deref()
                .unwrap_or(" [{dropped} of {total} bytes left out]");
            for end in boundaries(body).into_iter().rev() {
                if end == 0 || end == body.len() {
                    continue;
                }
                let note = render(note, end as u64, total, 0);
                let value = Node::Scalar(format!("\"{}{note}\"", &body[..end]));
                let text = finish(value, end as u64, total, 0);
                if fits(&text) {
                    return Ok(text);
                }
            }
            Err(vec!["NothingKept"])
        }
        Node::Object(_) => unreachable!(),
    }
}

/// Where the inside of a string may be cut.
fn boundaries(body: &str) -> Vec<usize> {
    let unit = |at: usize| {
        let digits = body.get(at..at + 6)?.strip_prefix("\\u")?;
        u16::from_str_radix(digits, 16).ok()
    };
    let (mut ends, mut at) = (vec![0], 0);
    while at < body.len() {
        at += match (unit(at), body[at..].chars().next()) {
            (Some(0xD800..0xDC00), _) if matches!(unit(at + 6), Some(0xDC00..0xE000)) => 12,
            (Some(_), _) => 6,
            (None, Some('\\')) => 2,
            (None, char) => char.unwrap().len_utf8(),
        };
        ends.push(at);
    }
    ends
}

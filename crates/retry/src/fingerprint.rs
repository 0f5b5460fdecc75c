//! Errors that are the same to a person get the same number: ids, figures and quoted parts do not count.

use crate::failure::Failure;

/// The group a failure of this kind of task belongs to.
pub fn fingerprint(kind: &str, failure: &Failure) -> i64 {
    let mut hash = Fnv::default();
    hash.part(kind);
    hash.part(failure.trigger.word());
    hash.part(failure.error_type.as_deref().unwrap_or(""));
    hash.part(failure.code.as_deref().unwrap_or(""));
    hash.part(&failure.status.map(|status| status.to_string()).unwrap_or_default());
    hash.part(&normalise(&failure.message));
    hash.number()
}

/// A fingerprint as 16 hexadecimal digits.
pub fn fingerprint_to_hex(fingerprint: i64) -> String {
    format!("{:016x}", fingerprint.cast_unsigned())
}

/// The message with what varies between occurrences replaced: `user 4711 not found` and `user 12 not found` are one.
pub fn normalise(message: &str) -> String {
    let first_line = message.lines().next().unwrap_or("");
    let mut out = String::with_capacity(first_line.len().min(200));
    let mut rest = first_line;
    while let Some(c) = rest.chars().next() {
        if out.len() >= 200 {
            break;
        }
        if matches!(c, '"' | '\'' | '`')
            && let Some(end) = rest[1..].find(c)
        {
            out.push('…');
            rest = &rest[1 + end + 1..];
        } else if c.is_alphanumeric() {
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            let word = &rest[..end];
            if is_variable(word) {
                out.push('#')
            } else {
                out.push_str(word)
            }
            rest = &rest[end..];
        } else {
            out.push(c);
            rest = &rest[c.len_utf8()..];
        }
    }
    out
}

/// A figure, or a run of hex digits long enough to be part of an id.
fn is_variable(word: &str) -> bool {
    word.bytes().all(|b| b.is_ascii_digit())
        || (word.len() >= 4 && word.bytes().any(|b| b.is_ascii_digit()) && word.bytes().all(|b| b.is_ascii_hexdigit()))
        || (word.len() >= 12 && word.bytes().filter(u8::is_ascii_digit).count() >= 4)
}

/// FNV-1a: stable for ever, which the standard library's hasher does not promise.
pub struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Fnv {
        Fnv(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    /// The hash so far.
    pub fn number(&self) -> i64 {
        self.0.cast_signed()
    }

    /// Adds a text, so that `ab`, `c` and `a`, `bc` differ.
    pub fn part(&mut self, text: &str) {
        for byte in text.bytes().chain([0xff]) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Trigger;

    #[test]
    fn what_varies_is_left_out() {
        let check = |message: &str, normal: &str| assert_eq!(normalise(message), normal);
        check("user 4711 not found", "user # not found");
        check("key \"abc\" missing in 'x y'", "key … missing in …");
        check("connect 10.0.0.7:5432 refused", "connect #.#.#.#:# refused");
        check("job 019a3f2c-77aa-7bb1-9c00-0242ac120002 lost", "job #-#-#-#-# lost");
        check("first line\nsecond 2", "first line");
        check("it's one quote", "it's one quote");
        check("HTTP2 and v8 stay", "HTTP2 and v8 stay");
    }

    #[test]
    fn groups_differ_by_kind_status_and_words() {
        let failure = |message: &str, status| Failure { status, ..Failure::new(Trigger::Error, message) };
        let base = fingerprint("pay", &failure("order 1 refused", Some(503)));
        assert_eq!(base, fingerprint("pay", &failure("order 2 refused", Some(503))));
        assert_ne!(base, fingerprint("mail", &failure("order 1 refused", Some(503))));
        assert_ne!(base, fingerprint("pay", &failure("order 1 refused", Some(502))));
        assert_ne!(base, fingerprint("pay", &failure("order 1 accepted", Some(503))));
    }
}

//! Output of a process: line by line, or its head and tail, in bounded memory.

use std::collections::VecDeque;

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};

/// A longer line is cut; more than a result may have.
const LONGEST_LINE: usize = 1 << 20;
/// Bytes that are kept of the head and of the tail.
const END_KEPT: usize = 8 * 1024;

/// A stream by its lines.
pub struct Lines<R>(BufReader<R>);

impl<R: AsyncRead + Unpin> Lines<R> {
    pub fn of(stream: R) -> Lines<R> {
        Lines(BufReader::new(stream))
    }

    /// `None` at the end of the stream or after an error.
    pub async fn next(&mut self) -> Option<String> {
        let mut line: Vec<u8> = Vec::new();
        loop {
            let piece = self.0.fill_buf().await.unwrap_or_default();
            if piece.is_empty() {
                return (!line.is_empty()).then(|| text(&line));
            }
            let end = piece.iter().position(|byte| *byte == b'\n');
            let part = &piece[..end.unwrap_or(piece.len())];
            let room = LONGEST_LINE.saturating_sub(line.len());
            line.extend_from_slice(&part[..part.len().min(room)]);
            let used = end.map_or(piece.len(), |end| end + 1);
            self.0.consume(used);
            if end.is_some() {
                return Some(text(&line));
            }
        }
    }
}

fn text(line: &[u8]) -> String {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    String::from_utf8_lossy(line).into_owned()
}

/// Head and tail of a stream; it is read to its end, so that the process never blocks.
pub async fn both_ends(stream: Option<impl AsyncRead + Unpin>) -> String {
    let Some(mut stream) = stream else { return String::new() };
    let (mut head, mut tail): (Vec<u8>, VecDeque<u8>) = (Vec::new(), VecDeque::new());
    let mut left_out = false;
    let mut piece = [0; 4 * 1024];
    while let Ok(read @ 1..) = stream.read(&mut piece).await {
        let room = (END_KEPT - head.len()).min(read);
        head.extend_from_slice(&piece[..room]);
        tail.extend(&piece[room..read]);
        let over = tail.len().saturating_sub(END_KEPT);
        left_out |= over > 0;
        tail.drain(..over);
    }
    let between = if left_out { "\n…\n" } else { "" };
    let (head, tail) = match left_out {
        // A character may lie across the two.
        false => (head.into_iter().chain(tail).collect(), Vec::new()),
        true => (head, tail.into()),
    };
    format!("{}{between}{}", String::from_utf8_lossy(&head), String::from_utf8_lossy(&tail)).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_are_bounded_and_need_not_be_text() {
        let long = "x".repeat(LONGEST_LINE + 5_000);
        let said = [b"one\r\n\n\xff\n".as_slice(), long.as_bytes(), b"\nlast"].concat();
        let mut lines = Lines::of(said.as_slice());
        for expected in ["one", "", "\u{fffd}", &long[..LONGEST_LINE], "last"] {
            assert!(lines.next().await.as_deref() == Some(expected), "{}", expected.len());
        }
        assert_eq!(lines.next().await, None);
    }

    #[tokio::test]
    async fn both_ends_are_kept() {
        assert_eq!(both_ends(Some(b" a word\n".as_slice())).await, "a word");
        let all = "é".repeat(END_KEPT);
        assert_eq!(both_ends(Some(all.as_bytes())).await, all, "what fits is whole");
        let long = format!("begin {} end", "x".repeat(100_000));
        let kept = both_ends(Some(long.as_bytes())).await;
        assert!(kept.starts_with("begin ") && kept.ends_with(" end") && kept.contains("\n…\n"));
        assert!(kept.len() < 2 * END_KEPT + 10, "{}", kept.len());
    }
}

//! The limits of one evaluation: steps and bytes. Every operation pays before it works, so nothing can grow without end.

use std::rc::Rc;

/// Why an evaluation ended without a value, in words.
pub(super) type Res<T> = Result<T, String>;

/// The largest text or list an evaluation may make, in bytes.
pub(super) const MAX_VALUE: usize = 1024 * 1024;
/// All values that one evaluation may make, in bytes. Nothing is given back before its end, so this bounds the peak too.
pub(super) const MAX_MEMORY: usize = 6 * 1024 * 1024;
/// Steps: about 16 for a node of the syntax tree, 2 for an item of a list, 1 for 4 bytes of text.
pub(super) const MAX_STEPS: u64 = 2_000_000;

pub(super) struct Meter {
    steps: u64,
    memory: usize,
}

impl Meter {
    pub fn new(steps: u64) -> Meter {
        Meter { steps, memory: MAX_MEMORY }
    }

    pub fn steps_left(&self) -> u64 {
        self.steps
    }

    /// Pays for work.
    pub fn work(&mut self, steps: usize) -> Res<()> {
        match self.steps.checked_sub(steps as u64) {
            Some(left) => {
                self.steps = left;
                Ok(())
            }
            None => {
                self.steps = 0;
                Err("engine ran out of fuel: the evaluation takes too many steps".into())
            }
        }
    }

    /// Pays for looking at that many bytes.
    pub fn look(&mut self, bytes: usize) -> Res<()> {
        self.work(bytes / 4 + 1)
    }

    /// Pays for a value of that many bytes, before it is made.
    pub fn keep(&mut self, bytes: usize) -> Res<()> {
        if bytes > MAX_VALUE {
            return Err(too_large());
        }
        self.more(bytes)
    }

    /// Pays for a value that grows.
    fn more(&mut self, bytes: usize) -> Res<()> {
        self.look(bytes)?;
        let left = self.memory.checked_sub(bytes);
        self.memory = left.ok_or_else(|| format!("its values would take more than {MAX_MEMORY} bytes in all"))?;
        Ok(())
    }

    /// The values of one text are gone when the next one is rendered.
    pub fn forget_values(&mut self) {
        self.memory = MAX_MEMORY;
    }
}

pub(super) fn too_large() -> String {
    format!("would become more than {MAX_VALUE} bytes")
}

/// A text as it is written, paid for byte by byte.
pub(super) struct Writer {
    text: String,
    limit: usize,
}

impl Writer {
    pub fn new(meter: &mut Meter) -> Res<Writer> {
        Writer::limited(meter, MAX_VALUE)
    }

    pub fn limited(meter: &mut Meter, limit: usize) -> Res<Writer> {
        meter.keep(64)?;
        Ok(Writer { text: String::new(), limit })
    }

    pub fn push(&mut self, meter: &mut Meter, part: &str) -> Res<()> {
        if self.text.len() + part.len() > self.limit {
            return Err(too_large());
        }
        meter.more(part.len())?;
        self.text.push_str(part);
        Ok(())
    }

    pub fn push_char(&mut self, meter: &mut Meter, letter: char) -> Res<()> {
        self.push(meter, letter.encode_utf8(&mut [0; 4]))
    }

    pub fn into_string(self) -> String {
        self.text
    }

    pub fn into_text(self) -> Rc<str> {
        Rc::from(self.text)
    }
}

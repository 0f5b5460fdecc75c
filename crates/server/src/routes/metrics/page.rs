//! The Prometheus text format.

use std::fmt::{Display, Write};

use comeback_engine::{BOUNDS_MS, Took};

/// Builder of the Prometheus text.
#[derive(Default)]
pub struct MetricsPage(String);

impl MetricsPage {
    /// Writes the help and type of a metric.
    pub fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP comeback_{name} {help}\n# TYPE comeback_{name} {kind}");
    }

    /// Writes one sample.
    pub fn value(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let escaped = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let labels: Vec<String> = labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(self.0, "comeback_{name}{labels} {value}");
    }

    /// Writes a counter without labels.
    pub fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.head(name, "counter", help);
        self.value(name, &[], value);
    }

    /// Writes a counter with one label.
    pub fn counters<'a>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (Vec<(&'a str, &'a str)>, u64)>,
    ) {
        self.head(name, "counter", help);
        for (labels, value) in values {
            self.value(name, &labels, value);
        }
    }

    /// Writes a histogram of durations per label set.
    pub fn times<'a>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (Vec<(&'a str, &'a str)>, &'a Took)>,
    ) {
        self.head(name, "histogram", help);
        for (labels, took) in values {
            let mut so_far = 0;
            for (i, count) in took.within.iter().enumerate() {
                so_far += count;
                let end = BOUNDS_MS.get(i).map_or_else(|| "+Inf".to_owned(), |ms| (*ms as f64 / 1e3).to_string());
                let labels: Vec<_> = labels.iter().copied().chain([("le", end.as_str())]).collect();
                self.value(&format!("{name}_bucket"), &labels, so_far);
            }
            self.value(&format!("{name}_sum"), &labels, took.sum_us as f64 / 1e6);
            self.value(&format!("{name}_count"), &labels, so_far);
        }
    }

    /// The complete text.
    pub fn into_text(self) -> String {
        self.0
    }
}

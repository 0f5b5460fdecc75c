pub fn all() -> Vec<(&'static str, fn())> { vec![] }

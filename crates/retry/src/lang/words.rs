//! One declaration for an enum that has a word on the wire and a number in a row.

/// Declares an enum whose variants each have a stable number and a stable word.
#[doc(hidden)]
#[macro_export]
macro_rules! words {
    ($(#[$doc:meta])* pub enum $name:ident { $($(#[$vdoc:meta])* $variant:ident = $code:literal $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $(#[doc = concat!("`", $word, "`.")] $(#[$vdoc])* $variant = $code),+
        }

        impl $name {
            /// Every variant, in the order of declaration.
            pub const ALL: &'static [$name] = &[$($name::$variant),+];

            /// The number that rows hold. It never changes its meaning.
            pub const fn code(self) -> i16 {
                self as i16
            }

            /// The variant of a stored number.
            pub fn from_code(code: i16) -> Option<$name> {
                match code { $($code => Some($name::$variant),)+ _ => None }
            }

            /// The word that people and the wire use.
            pub const fn word(self) -> &'static str {
                match self { $($name::$variant => $word),+ }
            }

            /// Reads the word, whatever its case.
            pub fn from_word(word: &str) -> Option<$name> {
                Self::ALL.iter().copied().find(|it| it.word().eq_ignore_ascii_case(word.trim()))
            }

            /// All words, for messages that tell what would have been right.
            pub fn list() -> String {
                Self::ALL.iter().map(|it| it.word()).collect::<Vec<_>>().join(", ")
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.word())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(self.word())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let word = std::borrow::Cow::<'de, str>::deserialize(from)?;
                $name::from_word(&word).ok_or_else(|| {
                    serde::de::Error::custom(format!("`{word}` is not one of {}", $name::list()))
                })
            }
        }
    };
}

pub use words;

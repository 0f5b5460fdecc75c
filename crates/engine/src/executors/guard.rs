//! Where calls may go: not to this machine and not into private networks, unless that was allowed. The address that was checked
//! is the address that is connected to, so a name that changes its mind gains nothing.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// Which addresses may be called.
#[derive(Clone, Debug, Default)]
pub struct EgressPolicy {
    /// All there are, loopback and private networks included.
    pub everywhere: bool,
    /// Networks that are allowed although they are not public.
    pub networks: Vec<IpNet>,
}

impl EgressPolicy {
    /// Whether calls to this address are allowed.
    pub fn allows(&self, address: IpAddr) -> bool {
        let plain = address.to_canonical();
        self.everywhere || is_public(address) || self.networks.iter().any(|network| network.contains(&plain))
    }
}

/// Only addresses that anybody on the internet could reach.
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => is_public_v4(v4),
        IpAddr::V6(v6) => is_public_v6(v6),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let special = address.is_loopback()
        || address.is_private()
        || address.is_link_local()
        || address.is_broadcast()
        || address.is_documentation()
        || address.is_multicast()
        || address.is_unspecified()
        || a == 0
        // Shared by carriers, protocol assignments, relays, benchmarks, reserved.
        || (a == 100 && (64..128).contains(&b))
        || (a == 192 && b == 0 && c == 0)
        || (a == 192 && b == 88 && c == 99)
        || (a == 198 && (18..20).contains(&b))
        || a >= 240;
    !special
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let part = address.segments();
    // An IPv4 address in disguise: mapped, translated (NAT64) or tunnelled (6to4).
    if let Some(v4) = address.to_ipv4_mapped() {
        return is_public_v4(v4);
    }
    let low = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        Ipv4Addr::new(a, b, c, d)
    };
    if part[..6] == [0x64, 0xff9b, 0, 0, 0, 0] {
        return is_public_v4(low(part[6], part[7]));
    }
    // Translated without state (SIIT): ::ffff:0:a.b.c.d.
    if part[..6] == [0, 0, 0, 0, 0xffff, 0] {
        return false;
    }
    if part[0] == 0x2002 {
        return is_public_v4(low(part[1], part[2]));
    }
    let special = address.is_loopback()
        || address.is_unspecified()
        || address.is_multicast()
        || address.is_unique_local()
        || address.is_unicast_link_local()
        || part[..6] == [0; 6]
        || (part[0] == 0x64 && part[1] == 0xff9b)
        || (part[0] == 0x2001 && (part[1] == 0xdb8 || part[1] < 0x200))
        || part[0] == 0x3fff
        // What is discarded (100::/64), and segment routing (5f00::/16).
        || part[..4] == [0x100, 0, 0, 0]
        || part[0] == 0x5f00
        || (part[0] & 0xffc0) == 0xfec0;
    !special
}

/// Looks names up and keeps only what may be called.
pub struct PolicyResolver(pub Arc<EgressPolicy>);

impl Resolve for PolicyResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let reach = self.0.clone();
        Box::pin(async move {
            let found: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let allowed: Vec<SocketAddr> = found.into_iter().filter(|it| reach.allows(it.ip())).collect();
            if allowed.is_empty() {
                let why = format!("{} is at no address that may be called from here", name.as_str());
                return Err(why.into());
            }
            let addresses: Addrs = Box::new(allowed.into_iter());
            Ok(addresses)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_that_is_allowed_is_called_and_its_neighbours_are_not() {
        let networks = ["10.1.0.0/16", "fd00:1::/32"].map(|text| text.parse().expect("a network")).to_vec();
        let reach = EgressPolicy { everywhere: false, networks };
        for (text, expected) in [
            ("10.1.2.3", true),
            ("::ffff:10.1.2.3", true),
            ("10.2.0.1", false),
            ("127.0.0.1", false),
            ("fd00:1::9", true),
            ("fd00:2::9", false),
            ("1.1.1.1", true),
        ] {
            assert_eq!(reach.allows(text.parse().expect(text)), expected, "{text}");
        }
    }

    /// R-S1.
    #[test]
    fn only_public_addresses_are_called() {
        let no = [
            "127.0.0.1",
            "127.8.9.1",
            "0.0.0.0",
            "10.1.2.3",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "100.127.255.255",
            "192.0.0.8",
            "192.0.2.1",
            "198.18.0.1",
            "198.51.100.7",
            "203.0.113.9",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::127.0.0.1",
            "fe80::1",
            "fc00::1",
            "fd12:3456::1",
            "ff02::1",
            "64:ff9b::7f00:1",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::1",
            "2002:7f00:1::1",
            "2002:c0a8:101::1",
            "2001:db8::1",
            "2001::1",
            "fec0::1",
            "3fff::1",
            "::ffff:0:10.0.0.1",
            "::ffff:0:8.8.8.8",
            "100::1",
            "5f00::1",
        ];
        for text in no {
            assert!(!is_public(text.parse().expect(text)), "{text}");
        }
        for text in [
            "1.1.1.1",
            "8.8.8.8",
            "172.32.0.1",
            "100.128.0.1",
            "2606:4700::1111",
            "64:ff9b::808:808",
            "2002:808:808::1",
        ] {
            assert!(is_public(text.parse().expect(text)), "{text}");
        }
    }
}

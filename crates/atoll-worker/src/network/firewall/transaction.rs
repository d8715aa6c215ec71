//! nftables transactions as netlink batches: all changes apply, or none.

use std::io;
use std::net::Ipv4Addr;

use super::policy::{AddressPortRange, Compiled};
use crate::network::addresses::address_index;
use crate::network::netlink::{ACK, Batch, Reply, Socket};

/// `NFPROTO_INET`: IPv4 and IPv6.
pub(super) const INET: u8 = 1;
const NFTABLES: u16 = 10;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
pub(super) const GETTABLE: u16 = message_type(1);
const DELTABLE: u16 = message_type(2);
const NEWCHAIN: u16 = message_type(3);
const DELCHAIN: u16 = message_type(5);
const NEWRULE: u16 = message_type(6);
const DELRULE: u16 = message_type(8);
const NEWSET: u16 = message_type(9);
const DELSET: u16 = message_type(11);
const NEWSETELEM: u16 = message_type(12);
const DELSETELEM: u16 = message_type(14);

/// Type of an nftables message.
pub(super) const fn message_type(number: u16) -> u16 {
    (NFTABLES << 8) + number
}

/// `NLM_F_CREATE`.
const CREATE: u16 = 0x400;
/// `NLM_F_APPEND`.
const APPEND: u16 = 0x800;

/// Every message's first attribute: the table's name.
pub(super) const TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
pub(super) const RULE_CHAIN: u16 = 2;
pub(super) const RULE_EXPRESSIONS: u16 = 4;
const SET_NAME: u16 = 2;
const SET_FLAGS: u16 = 3;
const SET_KEY_TYPE: u16 = 4;
const SET_KEY_LENGTH: u16 = 5;
const SET_DESCRIPTION: u16 = 9;
const SET_ID: u16 = 10;
const DESCRIPTION_FIELDS: u16 = 2;
const FIELD_LENGTH: u16 = 1;
const INTERVAL_CONCAT: u32 = 0x4 | 0x80;
/// The key type `ipv4_addr . inet_service`, for `nft list`.
const ADDRESS_AND_PORT: u32 = (7 << 6) + 13;
const LIST_SET: u16 = 2;
const LIST_ELEMENTS: u16 = 3;
pub(super) const ITEM: u16 = 1;
const ELEMENT_KEY: u16 = 1;
const ELEMENT_DATA: u16 = 2;
const ELEMENT_KEY_END: u16 = 10;
pub(super) const VALUE: u16 = 1;
const VERDICT: u16 = 2;
const VERDICT_CODE: u16 = 1;
const VERDICT_CHAIN: u16 = 2;

/// The verdict register, and two adjacent 4-byte registers.
const TO_VERDICT: u32 = 0;
const ADDRESS: u32 = 8;
const PORT: u32 = 9;

/// Verdict of a rule.
#[derive(Debug, Clone, Copy)]
enum Action {
    Drop,
    Return,
    Goto(&'static str),
    Jump,
}

/// Which address and port of a packet are the remote ones.
#[derive(Debug, Clone, Copy)]
struct Direction {
    /// Name of the map, and prefix of the chains.
    name: &'static str,
    /// Offsets of the remote address and port in their headers.
    address: u32,
    port: u32,
    forbidden: Action,
}

const DIRECTIONS: [Direction; 2] = [
    Direction {
        name: "out",
        address: 16,
        port: 2,
        forbidden: Action::Goto("refuse"),
    },
    Direction {
        name: "in",
        address: 12,
        port: 0,
        forbidden: Action::Drop,
    },
];

/// Changes of one table that apply together.
#[derive(Debug)]
pub(super) struct Transaction {
    table: String,
    batch: Batch,
    sets: u32,
    empty: bool,
}

impl Transaction {
    /// An empty transaction.
    pub(super) fn new(table: &str) -> Self {
        let mut batch = Batch::default();
        batch.message(BATCH_BEGIN, 0, &header(0, NFTABLES), |_| {});
        Self {
            table: table.to_owned(),
            batch,
            sets: 0,
            empty: true,
        }
    }

    /// Applies the changes.
    pub(super) fn commit(mut self, socket: &mut Socket) -> io::Result<()> {
        if self.empty {
            return Ok(());
        }
        self.batch.acknowledge();
        self.batch
            .message(BATCH_END, 0, &header(0, NFTABLES), |_| {});
        socket.request(&self.batch).map(drop)
    }

    /// Deletes all rules of a chain.
    pub(super) fn flush_chain(&mut self, chain: &str) {
        self.message(DELRULE, 0, |batch| batch.text(RULE_CHAIN, chain));
    }

    /// Deletes the table.
    pub(super) fn delete_table(&mut self) {
        self.message(DELTABLE, 0, |_| {});
    }

    /// Replaces a sandbox's policy.
    pub(super) fn replace(&mut self, sandbox: Ipv4Addr, old: &Compiled, new: &Compiled) {
        let index = address_index(sandbox);
        let [allow, deny] = ["allow", "deny"].map(|name| format!("{name}_{index}"));
        if old.is_empty() && !new.is_empty() {
            self.create_set(&allow);
            self.create_set(&deny);
            self.create_chains(sandbox, &allow, &deny);
        }
        if !old.is_empty() && new.is_empty() {
            self.delete_chains(sandbox);
            self.message(DELSET, 0, |batch| batch.text(SET_NAME, &allow));
            self.message(DELSET, 0, |batch| batch.text(SET_NAME, &deny));
        } else {
            self.update_set(&allow, &old.allow, &new.allow);
            self.update_set(&deny, &old.deny, &new.deny);
        }
    }

    fn message(&mut self, kind: u16, flags: u16, attributes: impl FnOnce(&mut Batch)) {
        let (table, batch) = (&self.table, &mut self.batch);
        self.empty = false;
        batch.message(kind, flags, &header(INET, 0), |batch| {
            batch.text(TABLE, table);
            attributes(batch);
        });
    }

    fn create_set(&mut self, name: &str) {
        self.sets += 1;
        let id = self.sets;
        self.message(NEWSET, CREATE, |batch| {
            batch.text(SET_NAME, name);
            for (kind, value) in [
                (SET_FLAGS, INTERVAL_CONCAT),
                (SET_KEY_TYPE, ADDRESS_AND_PORT),
                (SET_KEY_LENGTH, 8),
                (SET_ID, id),
            ] {
                batch.attribute(kind, &value.to_be_bytes());
            }
            batch.nested(SET_DESCRIPTION, &[], |batch| {
                batch.nested(DESCRIPTION_FIELDS, &[], |batch| {
                    for length in [4_u32, 2] {
                        batch.nested(ITEM, &[], |batch| {
                            batch.attribute(FIELD_LENGTH, &length.to_be_bytes());
                        });
                    }
                });
            });
        });
    }

    /// Removes elements that are only in `old` and adds those that are only in `new`.
    fn update_set(&mut self, set: &str, old: &[AddressPortRange], new: &[AddressPortRange]) {
        let missing = |from: &[AddressPortRange], other: &[AddressPortRange]| {
            let rest = from.iter().filter(|area| !other.contains(area));
            rest.copied().collect::<Vec<AddressPortRange>>()
        };
        let (gone, come) = (missing(old, new), missing(new, old));
        for (kind, flags, ranges) in [(DELSETELEM, 0, gone), (NEWSETELEM, CREATE, come)] {
            // The length of a nested attribute has 16 bits.
            for ranges in ranges.chunks(512) {
                self.change_elements(kind, flags, set, ranges, |batch, area| {
                    let [first, last] = area.bounds();
                    batch.nested(ELEMENT_KEY, &[], |batch| batch.attribute(VALUE, &first));
                    batch.nested(ELEMENT_KEY_END, &[], |batch| batch.attribute(VALUE, &last));
                });
            }
        }
    }

    fn change_elements<T>(
        &mut self,
        kind: u16,
        flags: u16,
        set: &str,
        elements: &[T],
        write: impl Fn(&mut Batch, &T),
    ) {
        self.message(kind, flags, |batch| {
            batch.text(LIST_SET, set);
            batch.nested(LIST_ELEMENTS, &[], |batch| {
                for element in elements {
                    batch.nested(ITEM, &[], |batch| write(batch, element));
                }
            });
        });
    }

    /// Creates a sandbox's chains and the map elements that jump to them.
    fn create_chains(&mut self, sandbox: Ipv4Addr, allow: &str, deny: &str) {
        for direction in DIRECTIONS {
            let chain = format!("{}_{}", direction.name, address_index(sandbox));
            self.message(NEWCHAIN, CREATE, |batch| batch.text(CHAIN_NAME, &chain));
            for (set, action) in [(allow, Action::Return), (deny, direction.forbidden)] {
                for ported in [true, false] {
                    self.message(NEWRULE, CREATE | APPEND, |batch| {
                        batch.text(RULE_CHAIN, &chain);
                        batch.nested(RULE_EXPRESSIONS, &[], |batch| {
                            write_rule(batch, direction, ported, set, action);
                        });
                    });
                }
            }
            self.change_elements(
                NEWSETELEM,
                CREATE,
                direction.name,
                &[chain],
                |batch, chain| {
                    batch.nested(ELEMENT_KEY, &[], |batch| {
                        batch.attribute(VALUE, &sandbox.octets());
                    });
                    batch.nested(ELEMENT_DATA, &[], |batch| {
                        write_verdict(batch, Action::Jump, chain);
                    });
                },
            );
        }
    }

    fn delete_chains(&mut self, sandbox: Ipv4Addr) {
        for direction in DIRECTIONS {
            let chain = format!("{}_{}", direction.name, address_index(sandbox));
            self.change_elements(
                DELSETELEM,
                0,
                direction.name,
                &[sandbox],
                |batch, sandbox| {
                    batch.nested(ELEMENT_KEY, &[], |batch| {
                        batch.attribute(VALUE, &sandbox.octets());
                    });
                },
            );
            self.message(DELRULE, 0, |batch| batch.text(RULE_CHAIN, &chain));
            self.message(DELCHAIN, 0, |batch| batch.text(CHAIN_NAME, &chain));
        }
    }
}

/// Requests a table.
pub(super) fn get_table(table: &str) -> Batch {
    let mut batch = Batch::default();
    batch.message(GETTABLE, ACK, &header(INET, 0), |batch| {
        batch.text(TABLE, table);
    });
    batch
}

/// Whether a message reports a deleted table.
pub(in crate::network) fn is_table_deletion(message: &Reply) -> bool {
    message.kind == DELTABLE
}

/// An `nfgenmsg`.
pub(super) fn header(family: u8, resource: u16) -> [u8; 4] {
    let [high, low] = resource.to_be_bytes();
    [family, 0, high, low]
}

/// A rule: verdict if the remote end is in a set. Protocols without ports match elements that cover
/// every port, 0 included.
fn write_rule(batch: &mut Batch, direction: Direction, ported: bool, set: &str, action: Action) {
    const NETWORK_HEADER: u32 = 1;
    const TRANSPORT_HEADER: u32 = 2;
    const PROTOCOL: u32 = 16;
    if ported {
        write_numeric(batch, "meta", &[(1, ADDRESS), (2, PROTOCOL)]);
        write_lookup(batch, "ported");
    }
    let address = [
        (1, ADDRESS),
        (2, NETWORK_HEADER),
        (3, direction.address),
        (4, 4),
    ];
    write_numeric(batch, "payload", &address);
    if ported {
        let port = [
            (1, PORT),
            (2, TRANSPORT_HEADER),
            (3, direction.port),
            (4, 2),
        ];
        write_numeric(batch, "payload", &port);
    } else {
        write_expression(batch, "immediate", |batch| {
            batch.attribute(1, &PORT.to_be_bytes());
            batch.nested(2, &[], |batch| batch.attribute(VALUE, &[0, 0]));
        });
    }
    write_lookup(batch, set);
    write_expression(batch, "immediate", |batch| {
        batch.attribute(1, &TO_VERDICT.to_be_bytes());
        let chain = match action {
            Action::Goto(chain) => chain,
            _ => "",
        };
        batch.nested(2, &[], |batch| write_verdict(batch, action, chain));
    });
}

fn write_lookup(batch: &mut Batch, set: &str) {
    write_expression(batch, "lookup", |batch| {
        batch.text(1, set);
        batch.attribute(2, &ADDRESS.to_be_bytes());
    });
}

fn write_verdict(batch: &mut Batch, action: Action, chain: &str) {
    let code: i32 = match action {
        Action::Drop => 0,
        Action::Jump => -3,
        Action::Goto(_) => -4,
        Action::Return => -5,
    };
    batch.nested(VERDICT, &[], |batch| {
        batch.attribute(VERDICT_CODE, &code.to_be_bytes());
        if !chain.is_empty() {
            batch.text(VERDICT_CHAIN, chain);
        }
    });
}

/// An expression with numeric attributes only.
fn write_numeric(batch: &mut Batch, name: &str, values: &[(u16, u32)]) {
    write_expression(batch, name, |batch| {
        for (kind, value) in values {
            batch.attribute(*kind, &value.to_be_bytes());
        }
    });
}

fn write_expression(batch: &mut Batch, name: &str, data: impl FnOnce(&mut Batch)) {
    const NAME: u16 = 1;
    const DATA: u16 = 2;
    batch.nested(ITEM, &[], |batch| {
        batch.text(NAME, name);
        batch.nested(DATA, &[], data);
    });
}

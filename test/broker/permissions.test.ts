// Who may send where: every rule of "Group rules on send" and "Personal channel record", one row
// each.

import type { SendRefusal } from "../../src/broker/errors.ts";
import {
  type ChannelInfo,
  GROUP_CHANNEL,
  PERSON_CHANNEL,
  SYSTEM_UID,
} from "../../src/broker/model.ts";
import { refuseGroupSend, refusePersonSend } from "../../src/broker/permissions.ts";
import type { GroupFacts, PersonFacts } from "../../src/broker/ports.ts";
import { t } from "../support/suite.ts";

const OPEN = {
  ban: false,
  disband: false,
  sendBan: false,
  allowStranger: false,
  large: false,
};

function group(rules: Partial<ChannelInfo> = {}): ChannelInfo {
  return { id: "g", type: GROUP_CHANNEL, ...OPEN, ...rules };
}

function person(rules: Partial<ChannelInfo> = {}): ChannelInfo {
  return { id: "p", type: PERSON_CHANNEL, ...OPEN, ...rules };
}

type Row<F> = readonly [
  rule: string,
  facts: F,
  expected: SendRefusal | undefined,
  system: SendRefusal | undefined,
];

const NO_LISTS = { isDenied: false, hasAllowlist: false, isAllowed: false };
const MEMBER = { isSubscriber: true, ...NO_LISTS };
const OUTSIDER = { isSubscriber: false, ...NO_LISTS };
const DENIED = { isDenied: true };
const ALLOWED = { hasAllowlist: true, isAllowed: true };
const UNLISTED = { hasAllowlist: true, isAllowed: false };

const GROUP_RULES: readonly Row<GroupFacts>[] = [
  ["a member may send", { info: group(), ...MEMBER }, undefined, undefined],
  ["an outsider may not", { info: group(), ...OUTSIDER }, "not_subscriber", undefined],
  [
    "a group that does not exist has no members",
    { info: undefined, ...OUTSIDER },
    "not_subscriber",
    undefined,
  ],
  ["ban mutes all members", { info: group({ ban: true }), ...MEMBER }, "channel_banned", undefined],
  [
    "send_ban prohibits all members",
    { info: group({ sendBan: true }), ...MEMBER },
    "send_banned",
    undefined,
  ],
  [
    "a disbanded group takes nothing, not even from the system",
    { info: group({ disband: true }), ...MEMBER },
    "channel_disbanded",
    "channel_disbanded",
  ],
  [
    "an outsider learns nothing of a ban",
    { info: group({ ban: true, sendBan: true }), ...OUTSIDER },
    "not_subscriber",
    undefined,
  ],
  [
    "disband is told before all else",
    {
      info: group({ ban: true, sendBan: true, disband: true }),
      ...OUTSIDER,
    },
    "channel_disbanded",
    "channel_disbanded",
  ],
  [
    "allow_stranger has no meaning in a group",
    { info: group({ allowStranger: true }), ...OUTSIDER },
    "not_subscriber",
    undefined,
  ],
  [
    "a super-large group has the same rules",
    { info: group({ large: true }), ...OUTSIDER },
    "not_subscriber",
    undefined,
  ],
  [
    "a member on the denylist may not send",
    { info: group(), ...MEMBER, ...DENIED },
    "denylisted",
    undefined,
  ],
  [
    "the denylist comes before membership, allowlist and ban",
    { info: group({ ban: true }), ...OUTSIDER, ...DENIED, ...UNLISTED },
    "denylisted",
    undefined,
  ],
  [
    "disband comes before the denylist",
    { info: group({ disband: true }), ...MEMBER, ...DENIED },
    "channel_disbanded",
    "channel_disbanded",
  ],
  [
    "with an allowlist other members may not send",
    { info: group(), ...MEMBER, ...UNLISTED },
    "not_allowlisted",
    undefined,
  ],
  ["members on the allowlist may", { info: group(), ...MEMBER, ...ALLOWED }, undefined, undefined],
  [
    "the allowlist makes nobody a member",
    { info: group(), ...OUTSIDER, ...ALLOWED },
    "not_subscriber",
    undefined,
  ],
  [
    "an outsider learns nothing of an allowlist",
    { info: group(), ...OUTSIDER, ...UNLISTED },
    "not_subscriber",
    undefined,
  ],
  [
    "the allowlist comes before ban and send_ban",
    { info: group({ ban: true, sendBan: true }), ...MEMBER, ...UNLISTED },
    "not_allowlisted",
    undefined,
  ],
  [
    "the allowlist does not lift a ban",
    { info: group({ ban: true }), ...MEMBER, ...ALLOWED },
    "channel_banned",
    undefined,
  ],
];

for (const [rule, facts, expected, system] of GROUP_RULES)
  t.test(`group: ${rule}`, async (t) => {
    t.equal(refuseGroupSend(facts, "alice", "check"), expected);
    t.equal(refuseGroupSend(facts, SYSTEM_UID, "check"), system, "as the system");
  });

const NO_RECORDS: PersonFacts = {
  receiver: undefined,
  receiverHasContacts: false,
  isContact: false,
  sender: undefined,
  ...NO_LISTS,
};
const CONTACT = { receiverHasContacts: true, isContact: true };
const STRANGER = { receiverHasContacts: true, isContact: false };

const PERSON_RULES: readonly Row<PersonFacts>[] = [
  ["without any record all is allowed", NO_RECORDS, undefined, undefined],
  [
    "records without rules allow all",
    { ...NO_RECORDS, receiver: person(), sender: person() },
    undefined,
    undefined,
  ],
  [
    "the receiver's ban: nobody may send to them",
    { ...NO_RECORDS, receiver: person({ ban: true }) },
    "channel_banned",
    undefined,
  ],
  [
    "not even a contact",
    { ...NO_RECORDS, ...CONTACT, receiver: person({ ban: true }) },
    "channel_banned",
    undefined,
  ],
  [
    "the sender's own ban does not keep them from sending",
    { ...NO_RECORDS, sender: person({ ban: true }) },
    undefined,
    undefined,
  ],
  [
    "the sender's send_ban: may receive but not send",
    { ...NO_RECORDS, sender: person({ sendBan: true }) },
    "send_banned",
    undefined,
  ],
  [
    "the receiver's send_ban does not keep others from sending to them",
    { ...NO_RECORDS, receiver: person({ sendBan: true }) },
    undefined,
    undefined,
  ],
  ["a contact may send", { ...NO_RECORDS, ...CONTACT, receiver: person() }, undefined, undefined],
  [
    "a stranger is refused where contacts are listed",
    { ...NO_RECORDS, ...STRANGER, receiver: person() },
    "stranger_refused",
    undefined,
  ],
  [
    "a stranger is allowed with allow_stranger",
    { ...NO_RECORDS, ...STRANGER, receiver: person({ allowStranger: true }) },
    undefined,
    undefined,
  ],
  [
    "nobody is a stranger to an empty list",
    { ...NO_RECORDS, receiver: person({ allowStranger: false }) },
    undefined,
    undefined,
  ],
  [
    "allow_stranger does not lift a ban",
    {
      ...NO_RECORDS,
      ...STRANGER,
      receiver: person({ allowStranger: true, ban: true }),
    },
    "channel_banned",
    undefined,
  ],
  [
    "a disbanded receiver takes nothing, not even from the system",
    { ...NO_RECORDS, receiver: person({ disband: true }) },
    "channel_disbanded",
    "channel_disbanded",
  ],
  [
    "the receiver's denylist holds without a record",
    { ...NO_RECORDS, ...DENIED },
    "denylisted",
    undefined,
  ],
  [
    "a contact on the denylist may not send",
    { ...NO_RECORDS, ...CONTACT, ...DENIED, receiver: person() },
    "denylisted",
    undefined,
  ],
  ["an allowlist does not count by itself", { ...NO_RECORDS, ...UNLISTED }, undefined, undefined],
];

for (const [rule, facts, expected, system] of PERSON_RULES)
  t.test(`personal: ${rule}`, async (t) => {
    t.equal(refusePersonSend(facts, "alice", "bob", "check"), expected);
    const asSystem = refusePersonSend(facts, SYSTEM_UID, "bob", "check");
    t.equal(asSystem, system, "as the system");
  });

t.test("friends only: just senders on the allowlist, the user itself and the system", async (t) => {
  const of = (facts: object, fromUid: string, toUid = "bob") =>
    refusePersonSend({ ...NO_RECORDS, ...facts }, fromUid, toUid, "check_friends");
  t.equal(of({}, "alice"), "not_allowlisted", "an empty list allows nobody");
  t.equal(of(UNLISTED, "alice"), "not_allowlisted");
  t.equal(of(ALLOWED, "alice"), undefined);
  t.equal(of({ ...ALLOWED, ...DENIED }, "alice"), "denylisted", "denied too");
  const strange = { ...ALLOWED, ...STRANGER, receiver: person() };
  t.equal(of(strange, "alice"), "stranger_refused", "contacts count as well");
  t.equal(of({}, SYSTEM_UID), undefined);
  t.equal(of({}, "bob"), undefined, "notes to oneself");
  t.equal(of(DENIED, "alice", SYSTEM_UID), undefined, "the system has no lists");
});

t.test("nobody is a stranger to themself", async (t) => {
  const own = person();
  const facts = { ...NO_LISTS, ...STRANGER, receiver: own, sender: own };
  t.equal(refusePersonSend(facts, "alice", "alice", "check"), undefined);
});

t.test("one's own ban and send_ban hold for notes to oneself", async (t) => {
  const banned = person({ ban: true });
  const muted = person({ sendBan: true });
  const self = (own: ChannelInfo): SendRefusal | undefined =>
    refusePersonSend({ ...NO_RECORDS, receiver: own, sender: own }, "alice", "alice", "check");
  t.equal(self(banned), "channel_banned");
  t.equal(self(muted), "send_banned");
});

// Permission to send: a row for every rule of "Group rules on send" and "Personal channel record".

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
  clientEvents: true,
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
  [
    "a user who is not a member may not send",
    { info: group(), ...OUTSIDER },
    "not_subscriber",
    undefined,
  ],
  [
    "a user may not send to a group that does not exist",
    { info: undefined, ...OUTSIDER },
    "not_subscriber",
    undefined,
  ],
  [
    "ban prohibits sending for all members",
    { info: group({ ban: true }), ...MEMBER },
    "channel_banned",
    undefined,
  ],
  [
    "send_ban prohibits sending for all members",
    { info: group({ sendBan: true }), ...MEMBER },
    "send_banned",
    undefined,
  ],
  [
    "nobody may send to a disbanded group, not even the system",
    { info: group({ disband: true }), ...MEMBER },
    "channel_disbanded",
    "channel_disbanded",
  ],
  [
    "missing membership is reported before a ban",
    { info: group({ ban: true, sendBan: true }), ...OUTSIDER },
    "not_subscriber",
    undefined,
  ],
  [
    "disband is reported before all other rules",
    {
      info: group({ ban: true, sendBan: true, disband: true }),
      ...OUTSIDER,
    },
    "channel_disbanded",
    "channel_disbanded",
  ],
  [
    "allow_stranger does not permit users who are not members to send",
    { info: group({ allowStranger: true }), ...OUTSIDER },
    "not_subscriber",
    undefined,
  ],
  [
    "a user who is not a member may not send to a large group",
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
    "the denylist is reported before membership, allowlist and ban",
    { info: group({ ban: true }), ...OUTSIDER, ...DENIED, ...UNLISTED },
    "denylisted",
    undefined,
  ],
  [
    "disband is reported before the denylist",
    { info: group({ disband: true }), ...MEMBER, ...DENIED },
    "channel_disbanded",
    "channel_disbanded",
  ],
  [
    "members outside a non-empty allowlist may not send",
    { info: group(), ...MEMBER, ...UNLISTED },
    "not_allowlisted",
    undefined,
  ],
  [
    "members on the allowlist may send",
    { info: group(), ...MEMBER, ...ALLOWED },
    undefined,
    undefined,
  ],
  [
    "a user on the allowlist who is not a member may not send",
    { info: group(), ...OUTSIDER, ...ALLOWED },
    "not_subscriber",
    undefined,
  ],
  [
    "missing membership is reported before the allowlist",
    { info: group(), ...OUTSIDER, ...UNLISTED },
    "not_subscriber",
    undefined,
  ],
  [
    "the allowlist is reported before ban and send_ban",
    { info: group({ ban: true, sendBan: true }), ...MEMBER, ...UNLISTED },
    "not_allowlisted",
    undefined,
  ],
  [
    "ban also applies to members on the allowlist",
    { info: group({ ban: true }), ...MEMBER, ...ALLOWED },
    "channel_banned",
    undefined,
  ],
];

for (const [rule, facts, expected, system] of GROUP_RULES)
  t.test(`in a group, ${rule}`, async (t) => {
    t.equal(refuseGroupSend(facts, "alice", "check"), expected);
    t.equal(refuseGroupSend(facts, SYSTEM_UID, "check"), system, "the system sends");
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
  ["everyone may send if neither user has a record", NO_RECORDS, undefined, undefined],
  [
    "everyone may send if the records have no rules",
    { ...NO_RECORDS, receiver: person(), sender: person() },
    undefined,
    undefined,
  ],
  [
    "nobody except the system may send to a receiver with ban",
    { ...NO_RECORDS, receiver: person({ ban: true }) },
    "channel_banned",
    undefined,
  ],
  [
    "contacts may not send to a receiver with ban",
    { ...NO_RECORDS, ...CONTACT, receiver: person({ ban: true }) },
    "channel_banned",
    undefined,
  ],
  [
    "a sender whose own record has ban may send",
    { ...NO_RECORDS, sender: person({ ban: true }) },
    undefined,
    undefined,
  ],
  [
    "a sender whose own record has send_ban may not send",
    { ...NO_RECORDS, sender: person({ sendBan: true }) },
    "send_banned",
    undefined,
  ],
  [
    "everyone may send to a receiver with send_ban",
    { ...NO_RECORDS, receiver: person({ sendBan: true }) },
    undefined,
    undefined,
  ],
  [
    "a contact of the receiver may send",
    { ...NO_RECORDS, ...CONTACT, receiver: person() },
    undefined,
    undefined,
  ],
  [
    "a stranger may not send to a receiver with contacts",
    { ...NO_RECORDS, ...STRANGER, receiver: person() },
    "stranger_refused",
    undefined,
  ],
  [
    "a stranger may send to a receiver with allow_stranger",
    { ...NO_RECORDS, ...STRANGER, receiver: person({ allowStranger: true }) },
    undefined,
    undefined,
  ],
  [
    "everyone may send to a receiver without contacts",
    { ...NO_RECORDS, receiver: person({ allowStranger: false }) },
    undefined,
    undefined,
  ],
  [
    "strangers may not send to a receiver with ban, even with allow_stranger",
    {
      ...NO_RECORDS,
      ...STRANGER,
      receiver: person({ allowStranger: true, ban: true }),
    },
    "channel_banned",
    undefined,
  ],
  [
    "nobody may send to a disbanded receiver, not even the system",
    { ...NO_RECORDS, receiver: person({ disband: true }) },
    "channel_disbanded",
    "channel_disbanded",
  ],
  [
    "the receiver's denylist applies even if the receiver has no record",
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
  [
    "the receiver's allowlist has no effect unless friendsOnly is set",
    { ...NO_RECORDS, ...UNLISTED },
    undefined,
    undefined,
  ],
];

for (const [rule, facts, expected, system] of PERSON_RULES)
  t.test(`in a personal channel, ${rule}`, async (t) => {
    t.equal(refusePersonSend(facts, "alice", "bob", "check"), expected);
    const asSystem = refusePersonSend(facts, SYSTEM_UID, "bob", "check");
    t.equal(asSystem, system, "the system sends");
  });

t.test(
  "only users on the receiver's allowlist, the receiver, the system uid and system accounts may send if friendsOnly is set",
  async (t) => {
    const refusal = (facts: object, fromUid: string, toUid = "bob") =>
      refusePersonSend({ ...NO_RECORDS, ...facts }, fromUid, toUid, "check_friends");
    t.equal(refusal({}, "alice"), "not_allowlisted", "an empty allowlist allows nobody");
    t.equal(refusal(UNLISTED, "alice"), "not_allowlisted");
    t.equal(refusal(ALLOWED, "alice"), undefined);
    t.equal(refusal({ ...ALLOWED, ...DENIED }, "alice"), "denylisted", "the denylist applies too");
    const stranger = { ...ALLOWED, ...STRANGER, receiver: person() };
    t.equal(refusal(stranger, "alice"), "stranger_refused", "contacts apply too");
    t.equal(refusal({}, SYSTEM_UID), undefined);
    t.equal(refusal({}, "bob"), undefined, "a user may send to themselves");
    t.equal(refusal(DENIED, "alice", SYSTEM_UID), undefined, "lists of the system have no effect");
  },
);

t.test("a user is never a stranger to themselves", async (t) => {
  const own = person();
  const facts = { ...NO_LISTS, ...STRANGER, receiver: own, sender: own };
  t.equal(refusePersonSend(facts, "alice", "alice", "check"), undefined);
});

t.test(
  "a user's own ban and send_ban apply to messages that the user sends to themselves",
  async (t) => {
    const banned = person({ ban: true });
    const muted = person({ sendBan: true });
    const refusal = (own: ChannelInfo): SendRefusal | undefined =>
      refusePersonSend({ ...NO_RECORDS, receiver: own, sender: own }, "alice", "alice", "check");
    t.equal(refusal(banned), "channel_banned");
    t.equal(refusal(muted), "send_banned");
  },
);

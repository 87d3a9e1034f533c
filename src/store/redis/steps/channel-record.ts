// Encodes and decodes channel records. A record is one number, in the channel's head and in script
// replies. `lua/channel_record.lua` is the Lua counterpart. Pure.

import type { ChannelFlags, ChannelInfo, ChannelKey, ChannelRef } from "../../../broker/model.ts";

const FORMAT = 1;
const FORMAT_UNIT = 256;

const BAN = 1;
const DISBAND = 2;
const SEND_BAN = 4;
const ALLOW_STRANGER = 8;
const LARGE = 16;
const NO_CLIENT_EVENTS = 128;
// Bits that `channel_facts.lua` adds to the record in its reply.
const MEMBER = 32;
const HAS_MEMBERS = 64;

const CHANGEABLE = [
  ["ban", BAN],
  ["sendBan", SEND_BAN],
  ["allowStranger", ALLOW_STRANGER],
  ["large", LARGE],
] as const;

/** Bits of the field `lists` in a channel's head. A bit is set if the list is not empty. */
export const LIST_BITS = { denylist: 1, allowlist: 2 } as const;
// Bits of the second value in the reply of `channel_facts.lua`. They describe the sender and the
// lists.
const DENIED = 1;
const HAS_ALLOWLIST = 2;
const ALLOWED = 4;

/** Returns the channel key of the record: `2:<id>` for a group, `1:<uid>` for a user. */
export function recordKey({ type, id }: ChannelRef): ChannelKey {
  return `${type}:${id}`;
}

export function infoOf({ id, type }: ChannelRef, bits: number): ChannelInfo | undefined {
  if (bits < 0) return undefined;
  return {
    id,
    type,
    ban: (bits & BAN) !== 0,
    disband: (bits & DISBAND) !== 0,
    sendBan: (bits & SEND_BAN) !== 0,
    allowStranger: (bits & ALLOW_STRANGER) !== 0,
    large: (bits & LARGE) !== 0,
    clientEvents: (bits & NO_CLIENT_EVENTS) === 0,
  };
}

export function isMember(bits: number): boolean {
  return bits >= 0 && (bits & MEMBER) !== 0;
}

/**
 * Returns true if the channel has members. The result is valid only if the script was called with
 * `any_members`.
 */
export function hasMembers(bits: number): boolean {
  return bits >= 0 && (bits & HAS_MEMBERS) !== 0;
}

export function listFactsOf(lists: number) {
  return {
    isDenied: (lists & DENIED) !== 0,
    hasAllowlist: (lists & HAS_ALLOWLIST) !== 0,
    isAllowed: (lists & ALLOWED) !== 0,
  };
}

export function isOpen(bits: number): boolean {
  return bits >= 0 && (bits & DISBAND) === 0;
}

/** Returns the record bits to set and to clear. `disband` is never cleared. */
export function changeOf(flags: ChannelFlags): readonly [set: number, clear: number] {
  let set = flags.disband === true ? DISBAND : 0;
  let clear = 0;
  for (const [name, bit] of CHANGEABLE)
    if (flags[name] === true) set |= bit;
    else if (flags[name] === false) clear |= bit;
  if (flags.clientEvents === false) set |= NO_CLIENT_EVENTS;
  else if (flags.clientEvents === true) clear |= NO_CLIENT_EVENTS;
  return [set, clear];
}

/** Returns the field of a channel's head that stores the seq of the user's newest message. */
export function ownField(uid: string): string {
  return `@${uid}`;
}

export function encodeInfo(flags: ChannelFlags): string {
  const [bits] = changeOf(flags);
  return `${FORMAT * FORMAT_UNIT + bits}`;
}

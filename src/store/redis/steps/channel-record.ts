// A channel's record in Redis: one number, as kept in the channel's head and as answered by the
// steps (`lua/channel_record.lua` is the other half). Pure.

import type { ChannelFlags, ChannelInfo, ChannelKey, ChannelRef } from "../../../broker/model.ts";

const FORMAT = 1;
const FORMAT_UNIT = 256;

/** Bits of a record. */
const BAN = 1;
const DISBAND = 2;
const SEND_BAN = 4;
const ALLOW_STRANGER = 8;
const LARGE = 16;
/** A step adds these to its answer. */
const MEMBER = 32;
const HAS_MEMBERS = 64;

const CHANGEABLE = [
  ["ban", BAN],
  ["sendBan", SEND_BAN],
  ["allowStranger", ALLOW_STRANGER],
  ["large", LARGE],
] as const;

/** Bits of the lists that are not empty, in the head's field `lists`. */
export const LIST_BITS = { denylist: 1, allowlist: 2 } as const;
/** Bits of a sender in the lists, as a step answers. */
const DENIED = 1;
const HAS_ALLOWLIST = 2;
const ALLOWED = 4;

/**
 * Under what name a channel's record and members are kept; a user's rules and contacts are no
 * conversation, so their name has no `@`.
 */
export function recordKey({ type, id }: ChannelRef): ChannelKey {
  return `${type}:${id}`;
}

/** The record that a step answered; undefined: no such channel. */
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
  };
}

/** The uid that was asked about is a member. */
export function isMember(bits: number): boolean {
  return bits >= 0 && (bits & MEMBER) !== 0;
}

/** There are members at all, where the step was asked for that. */
export function hasMembers(bits: number): boolean {
  return bits >= 0 && (bits & HAS_MEMBERS) !== 0;
}

/** Where the uid that was asked about stands in the lists. */
export function listFactsOf(lists: number) {
  return {
    isDenied: (lists & DENIED) !== 0,
    hasAllowlist: (lists & HAS_ALLOWLIST) !== 0,
    isAllowed: (lists & ALLOWED) !== 0,
  };
}

/** Members may be added. */
export function isOpen(bits: number): boolean {
  return bits >= 0 && (bits & DISBAND) === 0;
}

/**
 * Bits that change the record: those to set, and those to take away; nothing takes `disband` back.
 */
export function changeOf(flags: ChannelFlags): readonly [set: number, take: number] {
  let set = flags.disband === true ? DISBAND : 0;
  let take = 0;
  for (const [name, bit] of CHANGEABLE)
    if (flags[name] === true) set |= bit;
    else if (flags[name] === false) take |= bit;
  return [set, take];
}

/**
 * The field of a channel's head that has the seq of the user's newest message: no uid and no other
 * field has an `@`.
 */
export function ownField(uid: string): string {
  return `@${uid}`;
}

/** What a channel's head keeps of a record (field `info`). */
export function encodeInfo(flags: ChannelFlags): string {
  const [bits] = changeOf(flags);
  return `${FORMAT * FORMAT_UNIT + bits}`;
}

// A channel's record in Redis: fields of the hash `info` as written, one number as answered by the steps (`lua/channel_record.lua` is the other
// half). Pure.

import type {
  ChannelFlags,
  ChannelInfo,
  ChannelKey,
  ChannelRef,
} from "../../broker/model.ts";

/** Bits of a step's answer. */
const BAN = 1;
const DISBAND = 2;
const SEND_BAN = 4;
const ALLOW_STRANGER = 8;
const LARGE = 16;
const MEMBER = 32;
const HAS_MEMBERS = 64;

/** Under what name a channel's record and members are kept; a user's rules and contacts are no conversation, so their name has no `@`. */
export function recordKey({ type, id }: ChannelRef): ChannelKey {
  return `${type}:${id}`;
}

/** The record that a step answered; undefined: there is none. */
export function infoOf(
  { id, type }: ChannelRef,
  bits: number,
): ChannelInfo | undefined {
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

/** Members may be added. */
export function isOpen(bits: number): boolean {
  return bits >= 0 && (bits & DISBAND) === 0;
}

/** Fields and values that change the record; nothing takes `disband` back. */
export function fieldsOf(flags: ChannelFlags): readonly string[] {
  const { ban, disband, sendBan, allowStranger, large } = flags;
  const named = { ban, sendBan, allowStranger, large };
  const fields = Object.entries(named).flatMap(([name, value]) =>
    value === undefined ? [] : [name, value ? "1" : "0"],
  );
  return disband === true ? [...fields, "disband", "1"] : fields;
}

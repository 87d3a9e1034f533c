// Generates the tables of `lua/permission.lua` from the rules of `broker/permissions.ts`. A table
// has one digit for each combination of facts. The Lua file describes the bits of the facts.

import type { SendRefusal } from "../../../broker/errors.ts";
import {
  type ChannelInfo,
  type ChannelType,
  GROUP_CHANNEL,
  PERSON_CHANNEL,
  SYSTEM_UID,
} from "../../../broker/model.ts";
import { refuseGroupSend, refusePersonSend } from "../../../broker/permissions.ts";

/**
 * Numbers of the refusals in scripts. A later build may change the numbers, because they are not
 * stored.
 */
const REFUSALS = {
  channel_disbanded: 1,
  channel_banned: 2,
  send_banned: 3,
  not_subscriber: 4,
  stranger_refused: 5,
  denylisted: 6,
  not_allowlisted: 7,
  refused_by_hook: 8,
} as const satisfies Record<SendRefusal, number>;

const BY_CODE = new Map<number, SendRefusal>(
  Object.entries(REFUSALS).map(([refused, code]) => [
    code,
    refused as SendRefusal, // the keys of REFUSALS
  ]),
);

// ALLOW_STRANGER applies only to personal channels and MEMBER only to groups, so they share a bit.
const BAN = 1;
const DISBAND = 2;
const SEND_BAN = 4;
const ALLOW_STRANGER = 8;
const MEMBER = 8;
const STRANGER = 16;
const SYSTEM = 32;
const DENIED = 64;
const UNLISTED = 128;
const CASES = 256;
const SENDER = "sender";

export function codeOf(refused: SendRefusal | undefined): number {
  return refused === undefined ? 0 : REFUSALS[refused];
}

export function refusalOf(code: number): SendRefusal | undefined {
  return BY_CODE.get(code);
}

export function permissionTables(): string {
  return [
    `local SYSTEM_UID = '${SYSTEM_UID}'`,
    `local GROUP_REFUSALS = '${table(refuseInGroup)}'`,
    `local PERSON_REFUSALS = '${table(refuseToPerson)}'`,
  ].join("\n");
}

function table(refuse: (bits: number) => SendRefusal | undefined): string {
  return Array.from({ length: CASES }, (_, bits) => codeOf(refuse(bits))).join("");
}

function refuseInGroup(bits: number): SendRefusal | undefined {
  return refuseGroupSend(
    {
      info: infoOf(GROUP_CHANNEL, bits),
      isSubscriber: (bits & MEMBER) !== 0,
      ...listFacts(bits),
    },
    SENDER,
    (bits & SYSTEM) !== 0 ? "check_exempt" : "check",
  );
}

function refuseToPerson(bits: number): SendRefusal | undefined {
  return refusePersonSend(
    {
      receiver: infoOf(PERSON_CHANNEL, bits & ~SEND_BAN),
      receiverHasContacts: (bits & STRANGER) !== 0,
      isContact: false,
      sender: infoOf(PERSON_CHANNEL, bits & SEND_BAN),
      ...listFacts(bits),
    },
    SENDER,
    "receiver",
    // `check_friends` is right for every other check, because the script sets UNLISTED only if the
    // allowlist applies.
    (bits & SYSTEM) !== 0 ? "check_exempt" : "check_friends",
  );
}

function listFacts(bits: number) {
  return {
    isDenied: (bits & DENIED) !== 0,
    hasAllowlist: (bits & UNLISTED) !== 0,
    isAllowed: (bits & UNLISTED) === 0,
  };
}

function infoOf(type: ChannelType, bits: number): ChannelInfo {
  return {
    ...{ id: "", type, large: false, clientEvents: true },
    ban: (bits & BAN) !== 0,
    disband: (bits & DISBAND) !== 0,
    sendBan: (bits & SEND_BAN) !== 0,
    allowStranger: (bits & ALLOW_STRANGER) !== 0,
  };
}

// The fields that several operations of a client share, each checked as it is read, for the server. No state. Throws FrameError, under the
// request's ref.

import {
  type ChannelRef,
  GROUP_CHANNEL,
  isId,
  PERSON_CHANNEL,
} from "../../broker/model.ts";
import type { Ref } from "../protocol.ts";
import type { Copies } from "./copies.ts";
import type { FrameReader } from "./reader.ts";

/** What a client may put into one frame. */
export interface NativeLimits {
  /** Characters of an id, a clientMsgNo, a streamNo, a tagKey. */
  readonly maxIdLength: number;
  /** Bytes of a message's payload. */
  readonly maxPayloadBytes: number;
  /** Channels one CONNECT may resume. */
  readonly maxResumePoints: number;
  /** Uids one PRESENCE may name. */
  readonly maxPresenceUids: number;
  /** Uids one WATCH may name. */
  readonly maxWatchedUids: number;
  /** Commands one COMMANDACK may acknowledge. */
  readonly maxCommandAcks: number;
}

/** The frame an operation is read from. */
export interface Context {
  readonly reader: FrameReader;
  readonly limits: NativeLimits;
  readonly copies: Copies;
  readonly ref: Ref;
}

export function readChannel(context: Context): ChannelRef {
  const type = context.reader.uint("channelType");
  if (type !== PERSON_CHANNEL && type !== GROUP_CHANNEL)
    throw context.reader.refusal(
      "bad_request",
      "channelType must be 1 (personal) or 2 (group)",
    );
  return { type, id: readId(context, "channelId") };
}

export function readId(context: Context, what: string): string {
  const { reader, limits } = context;
  const id = reader.text(what, limits.maxIdLength, "bad_id");
  if (!isId(id)) throw reader.refusal("bad_id", `${what} is not a valid id`);
  return id;
}

/** At most `max` ids. */
export function readUids(context: Context, max: number): readonly string[] {
  return context.reader.list("uids", max, () => readId(context, "uid"));
}

/** A client's own number or label; nil and "" both mean none. Only its length matters. */
export function readLabel(context: Context, what: string): string | undefined {
  const { reader, limits } = context;
  if (reader.absent()) return undefined;
  return reader.text(what, limits.maxIdLength) || undefined;
}

/** A label that must be there. */
export function readName(context: Context, what: string): string {
  const { reader, limits } = context;
  const name = reader.text(what, limits.maxIdLength);
  if (name === "")
    throw reader.refusal("bad_request", `${what} must not be empty`);
  return name;
}

/** How many entries are wanted, from 1 to `max`. */
export function readLimit({ reader }: Context, max: number): number {
  const limit = reader.uint("limit", max);
  if (limit === 0) throw reader.refusal("bad_request", "limit must not be 0");
  return limit;
}

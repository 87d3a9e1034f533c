// Frames about the session itself and about users' sessions → bytes, for the server: CONNACK, PONG and other single numbers, PRESENCE, ERROR,
// DISCONNECT. No state. Field orders: docs/protocol/native.md.

import { CLOSE_REASONS, ERRORS } from "../../broker/errors.ts";
import type { Presence } from "../../broker/model.ts";
import type { Push, Reply } from "../protocol.ts";
import { WIRE_REASONS, wireCodeOf } from "./errors.ts";
import { begin, FIXED_BYTES, type Head } from "./frame-head.ts";
import { PUSH_OPS, REPLY_OPS, RESUME_STATUS } from "./ops.ts";
import { type FrameWriter, textBytes } from "./writer.ts";

export function writeConnack(
  writer: FrameWriter,
  reply: Extract<Reply, { kind: "connack" }>,
): void {
  const { limits, resume } = reply;
  let bytes = textBytes(reply.sessionId) + textBytes(reply.nodeId);
  for (const { channel } of resume)
    bytes += FIXED_BYTES + textBytes(channel.id);
  begin(writer, { op: REPLY_OPS.connack, ref: reply.ref, fields: 6 }, bytes);
  writer.uint(reply.version);
  writer.text(reply.sessionId);
  writer.text(reply.nodeId);
  writer.uint(reply.serverTimeMs);
  writer.array(4);
  writer.uint(limits.maxFrameBytes);
  writer.uint(limits.maxPayloadBytes);
  writer.uint(limits.idleTimeoutS);
  writer.uint(limits.maxFramesPerSecond);
  writer.array(resume.length);
  for (const { channel, status, headSeq } of resume) {
    writer.array(4);
    writer.uint(channel.type);
    writer.text(channel.id);
    writer.uint(RESUME_STATUS[status]);
    writer.uint(headSeq);
  }
}

/** A reply whose only field is a number. */
export function writeNumber(
  writer: FrameWriter,
  head: Omit<Head, "fields">,
  value: number,
): void {
  begin(writer, { ...head, fields: 1 });
  writer.uint(value);
}

export function writePresence(
  writer: FrameWriter,
  head: Omit<Head, "fields">,
  presence: readonly Presence[],
): void {
  let bytes = 0;
  for (const { uid } of presence) bytes += FIXED_BYTES + textBytes(uid);
  begin(writer, { ...head, fields: 1 }, bytes);
  writer.array(presence.length);
  for (const { uid, online, flag } of presence) {
    writer.array(3);
    writer.text(uid);
    writer.bool(online);
    writer.uint(flag);
  }
}

export function writeError(
  writer: FrameWriter,
  reply: Extract<Reply, { kind: "error" }>,
): void {
  const { ref } = reply;
  const code = wireCodeOf(reply.code);
  const message = reply.message || ERRORS[reply.code].message;
  begin(
    writer,
    { op: REPLY_OPS.error, ref, fields: 4 },
    textBytes(code) + textBytes(message),
  );
  writer.text(code);
  writer.text(message);
  writer.bool(ERRORS[reply.code].retry);
  writer.uint(wholeMs(reply.retryAfterMs));
}

/** A refusal must always reach the client: a time that no uint holds is rounded up, or clamped. */
function wholeMs(ms: number): number {
  return Math.ceil(Math.min(Math.max(ms || 0, 0), Number.MAX_SAFE_INTEGER));
}

export function writeDisconnect(
  writer: FrameWriter,
  push: Extract<Push, { kind: "disconnect" }>,
): void {
  const { code, message } = CLOSE_REASONS[push.reason];
  const name = WIRE_REASONS[push.reason];
  begin(
    writer,
    { op: PUSH_OPS.disconnect, ref: 0, fields: 3 },
    textBytes(name) + textBytes(message),
  );
  writer.uint(code);
  writer.text(name);
  writer.text(message);
}

// Encodes operations, for clients (SDK and tests). The server does not use this file. Values are
// not checked, because the server checks them. Throws RangeError only for a number or string that
// cannot be encoded. Works in browsers.

import { type ChannelRef, isWellFormed } from "../../broker/model.ts";
import type { ConversationChange, Operation } from "../protocol.ts";
import { CLIENT_OPS, CONVERSATION_CHANGES, FLAG_BITS } from "./ops.ts";
import { FrameWriter, textBytes } from "./writer.ts";

type Field = undefined | boolean | number | string | Uint8Array | readonly Field[];

const NUMBER_BYTES = 9;

/** Returns the frame of an operation, as a copy that the caller may keep or change. */
export function encodeOperation(operation: Operation): Uint8Array {
  const { kind, ref } = operation;
  const frame = [CLIENT_OPS[kind], ref, ...fieldsOf(operation)];
  const writer = new FrameWriter();
  writer.begin(maxBytes(frame));
  write(writer, frame);
  return writer.end().slice();
}

function fieldsOf(operation: Operation): readonly Field[] {
  switch (operation.kind) {
    case "connect": {
      const { version, uid, token, flag, deviceId, level, resume } = operation;
      const sessionName = operation.sessionName === "" ? [] : [operation.sessionName];
      const points = resume.map((point) => [...channelOf(point), point.lastSeq, point.lastId]);
      return [version, uid, token, flag, deviceId, level, points, ...sessionName];
    }
    case "send": {
      const { clientMsgNo, payload, expireS, streamNo, tagKey } = operation;
      const labels = [streamNo, tagKey];
      const flags = flagsOf(operation.header);
      const channel = channelOf(operation);
      return [...channel, clientMsgNo, payload, flags, expireS, ...labels];
    }
    case "recvack": {
      const { channel, messageSeq, messageId } = operation;
      return [channel?.type, channel?.id, messageSeq, messageId];
    }
    case "history": {
      const { fromSeq, toSeq, limit, reverse } = operation;
      return [...channelOf(operation), fromSeq, toSeq, limit, reverse];
    }
    case "presence":
    case "watch":
      return [operation.uids];
    case "stream":
    case "cancel":
      return [...channelOf(operation), operation.clientMsgNo];
    case "conversations": {
      const { limit, cursor, sinceMs } = operation;
      return [limit, cursor, ...(sinceMs === undefined ? [] : [sinceMs])];
    }
    case "conversation":
      return [...channelOf(operation), ...changeOf(operation.change)];
    case "members":
      return [...channelOf(operation), operation.limit, operation.cursor];
    case "commandack":
      return [operation.inboxSeqs];
    case "emit":
      return [...channelOf(operation), operation.type, operation.data];
    case "refresh":
      return [operation.token];
    case "state":
      return [operation.foreground];
    case "ping":
    case "disconnect":
      return [];
  }
}

function channelOf(request: { readonly channel: ChannelRef }): readonly Field[] {
  const { type, id } = request.channel;
  return [type, id];
}

function flagsOf(header: Extract<Operation, { readonly kind: "send" }>["header"]): number {
  return (
    (header.noPersist ? FLAG_BITS.noPersist : 0) |
    (header.redDot ? FLAG_BITS.redDot : 0) |
    (header.syncOnce ? FLAG_BITS.syncOnce : 0)
  );
}

function changeOf(change: ConversationChange | undefined): readonly Field[] {
  if (change === undefined) return [];
  const value = change.kind === "unread" ? change.unread : change.seq;
  return [CONVERSATION_CHANGES[change.kind], value];
}

/**
 * Returns true for a list. `instanceof Uint8Array` is not used, because it fails for bytes from a
 * different realm, such as a test runner's.
 */
function isList(field: Uint8Array | readonly Field[]): field is readonly Field[] {
  return Array.isArray(field);
}

function maxBytes(field: Field): number {
  if (typeof field === "string") return textBytes(field);
  if (typeof field !== "object") return NUMBER_BYTES;
  if (!isList(field)) return NUMBER_BYTES + field.length;
  return field.reduce<number>((sum, item) => sum + maxBytes(item), NUMBER_BYTES);
}

function write(writer: FrameWriter, field: Field): void {
  if (typeof field === "string") {
    // The UTF-8 encoder would replace a lone surrogate, so two different names could become equal.
    if (!isWellFormed(field)) throw new RangeError("A string has a lone surrogate");
    writer.text(field);
  } else if (typeof field === "number") writer.uint(field);
  else if (typeof field === "boolean") writer.bool(field);
  else if (field === undefined) writer.nil();
  else if (!isList(field)) writer.bin(field);
  else {
    writer.array(field.length);
    for (const item of field) write(writer, item);
  }
}

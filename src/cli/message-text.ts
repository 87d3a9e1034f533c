// Formats messages and channels as one line of text. Text from users is made safe for a terminal.

import { printable } from "../lib/printable.ts";

interface ShownMessage {
  readonly channelId: string;
  readonly channelType: number;
  readonly messageSeq: number;
  readonly fromUid: string;
  readonly timestampMs: number;
  readonly text: string;
}

const PERSONAL = 1;

/** Returns a line such as `09:30:12 lobby #3 bob: hello`. */
export function messageLine(message: ShownMessage): string {
  const { messageSeq, fromUid, timestampMs, text } = message;
  const seq = messageSeq === 0 ? "" : ` #${messageSeq}`;
  const channel = channelName(message);
  return `${timeOf(timestampMs)} ${channel}${seq} ${printable(fromUid)}: ${printable(text)}`;
}

/** Returns the id of a group, or `@` and the other user's uid. An id never contains `@`. */
export function channelName(channel: {
  readonly channelId: string;
  readonly channelType: number;
}): string {
  const id = printable(channel.channelId);
  return channel.channelType === PERSONAL ? `@${id}` : id;
}

/** Returns the content of a text message, other JSON unchanged, or the size of other payloads. */
export function payloadText(payload: Uint8Array): string {
  const text = Buffer.from(payload).toString("utf8");
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    return `(${payload.length} bytes that are not JSON)`;
  }
  const { type, content } = Object(value) as {
    readonly type?: unknown;
    readonly content?: unknown;
  };
  return type === 1 && typeof content === "string" ? content : text;
}

/** Returns the local time of day, with the date if it is not today. */
export function timeOf(timestampMs: number): string {
  const date = new Date(timestampMs);
  const two = (value: number) => String(value).padStart(2, "0");
  const time = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  if (date.toDateString() === new Date().toDateString()) return time;
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${time}`;
}

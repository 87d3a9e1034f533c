// The state of a stream in one comparable shape, a "picture", from any source: a producer's script,
// a viewer's frames, GET /stream or history. Pure functions. Pictures are compared completely.

import {
  STREAM_CONTENT,
  STREAM_END,
  STREAM_START,
  type StreamSnapshot,
} from "../../src/broker/model.ts";
import type { Random } from "../support/random.ts";

/** An event of a producer. Its position in the script is its index in the stream. */
export interface ScriptEvent {
  readonly type: string;
  readonly data: string;
}

export interface PictureNote extends ScriptEvent {
  readonly index: number;
  readonly textOffset: number;
}

export interface StreamPicture {
  readonly state: string;
  readonly text: string;
  readonly nextIndex: number;
  readonly startData: string;
  readonly endData: string | undefined;
  readonly notes: readonly PictureNote[];
}

const NOTES = [
  "___ToolCallStart",
  "___ToolCallArgs",
  "___ToolCallEnd",
  "___ToolCallResult",
  "status",
] as const;

/**
 * Returns a script: a start, `chunks` content events of up to `maxUnits` UTF-16 code units with a
 * tool call and a custom event after some of them, and an end. Some chunks are empty.
 */
export function writeScript(
  random: Random,
  { chunks, maxUnits }: { readonly chunks: number; readonly maxUnits: number },
): readonly ScriptEvent[] {
  const block = () => random.text(Math.min(maxUnits, 64));
  const body = Array.from({ length: chunks }, () => {
    const data =
      random.below(10) === 0 ? "" : block().repeat(Math.max(1, Math.floor(maxUnits / 64)));
    return { type: STREAM_CONTENT, data };
  });
  const notes = () => NOTES.map((type) => ({ type, data: random.text(40) || "{}" }));
  const events = body.flatMap((chunk) => (random.below(150) === 0 ? [chunk, ...notes()] : [chunk]));
  return [
    { type: STREAM_START, data: random.text(20) },
    ...events,
    { type: STREAM_END, data: random.text(20) },
  ];
}

/** Returns the stream after the first `count` events of its script. */
export function pictureOf(script: readonly ScriptEvent[], count = script.length): StreamPicture {
  let text = "";
  let endData: string | undefined;
  const notes: PictureNote[] = [];
  script.slice(0, count).forEach(({ type, data }, index) => {
    if (type === STREAM_CONTENT) text += data;
    else if (type === STREAM_END) endData = data;
    else if (type !== STREAM_START) notes.push({ index, textOffset: text.length, type, data });
  });
  const state = endData === undefined ? "active" : "closed";
  const startData = count > 0 ? (script[0]?.data ?? "") : "";
  return { state, text, nextIndex: count, startData, endData, notes };
}

export function pictureOfSnapshot(snapshot: StreamSnapshot): StreamPicture {
  const { state, text, nextIndex, startData, endData, notes } = snapshot;
  return {
    ...{ state, text, nextIndex, startData, endData },
    notes: notes.map(({ index, textOffset, type, data }) => ({
      ...{ index, textOffset, type, data },
    })),
  };
}

/** Converts the body of GET /stream, or the `stream` field of a message in history. */
// biome-ignore lint/suspicious/noExplicitAny: an untyped body
export function pictureOfJson(body: any): StreamPicture {
  return {
    state: body.state,
    text: body.text,
    nextIndex: body.next_index,
    startData: body.start_data,
    endData: body.end_data ?? undefined,
    notes: body.events.map(
      // biome-ignore lint/suspicious/noExplicitAny: an untyped body
      (note: any) => ({
        index: note.index,
        textOffset: note.text_offset,
        type: note.type,
        data: note.data,
      }),
    ),
  };
}

/**
 * Returns the first difference between two pictures as one line, or `undefined` if they are equal.
 */
export function differenceOf(actual: StreamPicture, expected: StreamPicture): string | undefined {
  if (actual.text !== expected.text) {
    let at = 0;
    while (actual.text[at] === expected.text[at]) at += 1;
    return `text differs at ${at}: ${actual.text.length} units, not ${expected.text.length}`;
  }
  const withoutText = ({ text: _, ...fields }: StreamPicture) => JSON.stringify(fields);
  if (withoutText(actual) === withoutText(expected)) return undefined;
  return `${withoutText(actual).slice(0, 300)}, not ${withoutText(expected).slice(0, 300)}`;
}

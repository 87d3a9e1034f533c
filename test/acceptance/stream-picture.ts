// A stream as anybody may come to know it, in one shape: from its producer's script, a viewer's
// frames, GET /stream or history. Pure. Pictures are compared whole; nothing here explains a
// difference away.

import {
  STREAM_CONTENT,
  STREAM_END,
  STREAM_START,
  type StreamSnapshot,
} from "../../src/broker/model.ts";
import type { Random } from "../support/random.ts";

/**
 * What a producer says, in order: the index of each event in its stream is its place in the script.
 */
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

const TOOL_CALL = [
  "___ToolCallStart",
  "___ToolCallArgs",
  "___ToolCallEnd",
  "___ToolCallResult",
] as const;

/**
 * Start, `chunks` contents of up to `maxUnits` UTF-16 units with a tool call here and there, End.
 * Some chunks are empty.
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
  const call = () => TOOL_CALL.map((type) => ({ type, data: random.text(40) || "{}" }));
  const withCalls = body.flatMap((chunk) =>
    random.below(150) === 0 ? [chunk, ...call()] : [chunk],
  );
  return [
    { type: STREAM_START, data: random.text(20) },
    ...withCalls,
    { type: STREAM_END, data: random.text(20) },
  ];
}

/** The stream after the first `count` events of its script. */
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

/** Of GET /stream, or of the `stream` of a message in history. */
// biome-ignore lint/suspicious/noExplicitAny: a body as it came
export function pictureOfJson(body: any): StreamPicture {
  return {
    state: body.state,
    text: body.text,
    nextIndex: body.next_index,
    startData: body.start_data,
    endData: body.end_data ?? undefined,
    notes: body.events.map(
      // biome-ignore lint/suspicious/noExplicitAny: a body as it came
      (note: any) => ({
        index: note.index,
        textOffset: note.text_offset,
        type: note.type,
        data: note.data,
      }),
    ),
  };
}

/** Where two pictures differ, in a line; undefined: they are the same. Texts may be long. */
export function differenceOf(found: StreamPicture, wanted: StreamPicture): string | undefined {
  if (found.text !== wanted.text) {
    let at = 0;
    while (found.text[at] === wanted.text[at]) at += 1;
    return `text differs at ${at}: ${found.text.length} units, not ${wanted.text.length}`;
  }
  const rest = ({ text: _, ...other }: StreamPicture) => JSON.stringify(other);
  if (rest(found) === rest(wanted)) return undefined;
  return `${rest(found).slice(0, 300)}, not ${rest(wanted).slice(0, 300)}`;
}

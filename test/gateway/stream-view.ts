// The pushes and replies of one client as a careful client sees them: the text of each stream, and
// every gap, repeat or event out of order.

import {
  type ChannelEvent,
  STREAM_CONTENT,
  STREAM_END,
  STREAM_START,
  type StreamSnapshot,
} from "../../src/broker/model.ts";
import type { Seen } from "./recorder.ts";

/** A stream as the client has it. */
export interface ViewedStream {
  state: string;
  text: string;
  nextIndex: number;
  endData: string | undefined;
  /** Data of the tool calls, in order. */
  notes: readonly string[];
}

export interface StreamView {
  /** The streams by channel key and name. */
  readonly streams: ReadonlyMap<string, ViewedStream>;
  /** Data of the events outside of streams, in order. */
  readonly customs: readonly string[];
  /** Number of events that covered more than one chunk. */
  readonly merged: number;
  readonly problems: readonly string[];
}

export const streamName = ({
  key,
  clientMsgNo,
}: Pick<ChannelEvent, "key" | "clientMsgNo">): string => `${key} ${clientMsgNo}`;

/** Reads all frames that one connection was sent, in order. */
export function streamView(seen: readonly Seen[]): StreamView {
  const viewer = new Viewer();
  for (const frame of seen) viewer.take(frame);
  return viewer;
}

class Viewer implements StreamView {
  readonly streams = new Map<string, ViewedStream>();
  readonly customs: string[] = [];
  readonly problems: string[] = [];
  merged = 0;

  take(frame: Seen): void {
    if (frame.kind === "event") this.#event(frame.event);
    if (frame.kind === "stream") this.#snapshot(frame.snapshot, true);
    if (frame.kind === "message") this.#shown(frame.message.stream);
    if (frame.kind === "messages") for (const { stream } of frame.messages) this.#shown(stream);
    if (frame.kind === "conversation") this.#shown(frame.conversation.last?.stream);
    if (frame.kind === "reply" && frame.reply.kind === "stream")
      this.#snapshot(frame.reply.snapshot, false);
    if (frame.kind === "reply" && frame.reply.kind === "conversation")
      this.#shown(frame.reply.conversation.last?.stream);
  }

  #shown(snapshot: StreamSnapshot | undefined): void {
    if (snapshot !== undefined) this.#snapshot(snapshot, false);
  }

  #snapshot(snapshot: StreamSnapshot, isPush: boolean): void {
    const { state, text, nextIndex, endData } = snapshot;
    const name = streamName(snapshot);
    const before = this.streams.get(name);
    if (before !== undefined && nextIndex < before.nextIndex) {
      if (isPush) this.problems.push(`${name}: set back to ${nextIndex} by a push`);
      return; // the reply was read before later pushes
    }
    const notes = snapshot.notes.map(({ data }) => data);
    this.streams.set(name, { state, text, nextIndex, endData, notes });
  }

  /**
   * Starts a stream. A client that joined between the stream's message and its first event does not
   * need the message.
   */
  #begin(name: string, index: number): ViewedStream | undefined {
    if (index > 0) return undefined;
    const begun = { state: "active", text: "", nextIndex: 0 };
    const stream = { ...begun, endData: undefined, notes: [] };
    this.streams.set(name, stream);
    return stream;
  }

  #event(event: ChannelEvent): void {
    const { stream, type, data } = event;
    if (stream === undefined) {
      this.customs.push(data);
      return;
    }
    const name = streamName(event);
    const have = this.streams.get(name) ?? this.#begin(name, stream.index);
    if (have === undefined) {
      this.problems.push(`${name}: ${stream.index} of an unknown stream`);
      return;
    }
    if (stream.nextIndex <= have.nextIndex) return; // a reply already contained the event
    if (stream.index !== have.nextIndex)
      this.problems.push(`${name}: ${stream.index} at ${have.nextIndex}`);
    if (stream.textOffset !== have.text.length)
      this.problems.push(`${name}: text at ${stream.textOffset}`);
    if (stream.nextIndex > stream.index + 1) this.merged += 1;
    have.nextIndex = stream.nextIndex;
    have.state = stream.state;
    if (type === STREAM_CONTENT) have.text += data;
    else if (type === STREAM_END) have.endData = data;
    else if (type !== STREAM_START) have.notes = [...have.notes, data];
  }
}

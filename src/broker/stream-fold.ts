// Folds the events of a stream, in order, into its snapshot: the text so far, the notes, and the
// data of the start and the end. Makes no calls.

import type { LogEnding } from "./log-ports.ts";
import {
  STREAM_CONTENT,
  STREAM_END,
  STREAM_START,
  type StreamNote,
  type StreamSnapshot,
  type StreamState,
} from "./model.ts";
import { defaultEventId, type StreamEvent } from "./stream-event.ts";

type FoldedEvent = Pick<StreamEvent, "type" | "eventId" | "data" | "timestampMs">;

/** The message of a stream, without its content. */
export type StreamHead = Pick<
  StreamSnapshot,
  "key" | "channel" | "fromUid" | "clientMsgNo" | "messageId" | "messageSeq"
>;

/** Returns the state of a stream whose log has this ending. */
export function stateAfter(ending: LogEnding | undefined): StreamState {
  if (ending === undefined) return "active";
  return ending === "stopped" ? "cancelled" : ending;
}

export class StreamFold {
  readonly #head: StreamHead;
  readonly #notes: StreamNote[] = [];
  #text = "";
  #nextIndex = 0;
  #start: FoldedEvent | undefined;
  #end: FoldedEvent | undefined;
  #state: StreamState = "active";
  #snapshot: StreamSnapshot | undefined;

  constructor(head: StreamHead) {
    this.#head = head;
  }

  /** Number of events, which is also the index of the next event. */
  get nextIndex(): number {
    return this.#nextIndex;
  }

  /** Adds the next event. `state` is that of the stream after the event. */
  add(event: FoldedEvent, state: StreamState): void {
    const { type, data, eventId, timestampMs } = event;
    const index = this.#nextIndex;
    if (type === STREAM_CONTENT) this.#text += data;
    else if (type === STREAM_START) this.#start = event;
    else if (type === STREAM_END) this.#end = event;
    else {
      const id = eventId ?? defaultEventId(index);
      const textOffset = this.#text.length;
      this.#notes.push({ index, textOffset, eventId: id, type, data, timestampMs });
    }
    this.#state = state;
    this.#nextIndex = index + 1;
    this.#snapshot = undefined;
  }

  /** Returns the snapshot. It is the same object until another event is added. */
  snapshot(): StreamSnapshot {
    this.#snapshot ??= this.#createSnapshot();
    return this.#snapshot;
  }

  #createSnapshot(): StreamSnapshot {
    const { key, channel, fromUid, clientMsgNo, messageId, messageSeq } = this.#head;
    return {
      ...{ key, channel, fromUid, clientMsgNo, messageId, messageSeq },
      state: this.#state,
      text: this.#text,
      nextIndex: this.#nextIndex,
      startData: this.#start?.data ?? "",
      endData: this.#end?.data,
      startId: this.#start?.eventId,
      endId: this.#end?.eventId,
      notes: this.#notes.slice(),
    };
  }
}

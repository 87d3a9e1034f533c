// Streams as the control plane shows them. Pure.

import type { StreamNote, StreamSnapshot } from "../broker/model.ts";

/** How a stream stands, as history shows it with its message. */
export function streamJson(stream: StreamSnapshot) {
  return {
    state: stream.state,
    text: stream.text,
    next_index: stream.nextIndex,
    start_data: stream.startData,
    end_data: stream.endData ?? null,
    events: stream.notes.map(noteJson),
  };
}

/** The same with what names it. */
export function streamReplyJson(stream: StreamSnapshot) {
  return {
    ...streamJson(stream),
    client_msg_no: stream.clientMsgNo,
    from_uid: stream.fromUid,
    message_id: stream.messageId,
    message_seq: stream.messageSeq,
  };
}

function noteJson(note: StreamNote) {
  return {
    index: note.index,
    text_offset: note.textOffset,
    id: note.eventId,
    type: note.type,
    data: note.data,
    timestamp: note.timestampMs,
  };
}

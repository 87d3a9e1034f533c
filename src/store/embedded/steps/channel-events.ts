// Emits the events for changes to channels and their members. Keeps no state.

import { type EventDraft, type EventFields, MAX_EVENT_UIDS } from "../../../broker/event-ports.ts";
import type { ChannelInfo } from "../../../broker/model.ts";
import type { Emit } from "./event-outbox.ts";

/**
 * Flags of a channel and their names in events. `redis/lua/channel_events.lua` uses the same names.
 */
const FLAGS = [
  ["ban", "ban"],
  ["disband", "disband"],
  ["sendBan", "send_ban"],
  ["allowStranger", "allow_stranger"],
  ["large", "large"],
  ["clientEvents", "client_events"],
] as const;

/** Emits the event for a channel that was created or changed. Emits nothing if nothing changed. */
export function emitChannel(emit: Emit, before: ChannelInfo | undefined, after: ChannelInfo): void {
  const fields: Record<string, number> = {};
  for (const [flag, name] of FLAGS)
    if (before?.[flag] !== after[flag]) fields[name] = after[flag] ? 1 : 0;
  if (before === undefined) emit(draftOf("channel.created", after, fields));
  else if (fields.disband === 1) emit(draftOf("channel.deleted", after, fields));
  else if (Object.keys(fields).length > 0) emit(draftOf("channel.updated", after, fields));
}

/** Emits the events for added or removed members, up to `MAX_EVENT_UIDS` uids per event. */
export function emitMembers(
  emit: Emit,
  type: "channel.members_added" | "channel.members_removed",
  channel: Pick<ChannelInfo, "type" | "id">,
  { uids, isTemporary }: { readonly uids: readonly string[]; readonly isTemporary: boolean },
): void {
  for (let at = 0; at < uids.length; at += MAX_EVENT_UIDS) {
    const page = uids.slice(at, at + MAX_EVENT_UIDS);
    emit(draftOf(type, channel, { uids: page, temp_subscriber: isTemporary ? 1 : 0 }));
  }
}

function draftOf(
  type: EventDraft["type"],
  channel: Pick<ChannelInfo, "type" | "id">,
  fields: EventFields,
): EventDraft {
  return { type, key: `${channel.type}:${channel.id}`, messageSeq: 0, fields };
}

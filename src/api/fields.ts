// Schemas of the fields that many calls share: ids, labels, flags, channels. State: none.

import { Type } from "typebox";

/** As in `broker/ids`; patterns have the `u` flag, so a lone surrogate is refused. */
export const ID_PATTERN = "^[^@#&\\p{Cc}\\p{Cs}]{1,128}$";
/** client_msg_no: any 1 to 128 characters. */
export const LABEL_PATTERN = "^\\P{Cs}{1,128}$";
/** from_uid of an event: "" is the system. */
export const OPTIONAL_ID_PATTERN = "^[^@#&\\p{Cc}\\p{Cs}]{0,128}$";
/** A label whose "" means the same as its absence. */
export const OPTIONAL_LABEL_PATTERN = "^\\P{Cs}{0,128}$";

/** Most uids one call may look up; more need further calls. */
export const MAX_LOOKUP_UIDS = 10_000;
/** The latest time a Date can hold. */
export const MAX_TIME_MS = 8_640_000_000_000_000;

/** The channel of examples. */
export const LOBBY = { channel_id: "lobby", channel_type: 2 };

export const id = (description: string) => Type.String({ pattern: ID_PATTERN, description });
export const flag = (description: string) => Type.Enum([0, 1], { type: "integer", description });
export const uids = (
  description: string,
  maxItems: number,
  naming: { readonly title?: string; readonly examples?: string[][] } = {},
) => Type.Array(id("user id"), { maxItems, description, ...naming });

export const channelId = id("Channel id; for a personal channel the user's uid");
export const channelType = Type.Enum([1, 2], {
  type: "integer",
  description: "1 personal channel, 2 group channel",
});
export const personUid = id(
  "Whose conversation with channel_id it is; needed for a personal channel",
);
export const streamName = Type.String({
  pattern: LABEL_PATTERN,
  description: "Names the stream or message; all events of a stream share it",
});

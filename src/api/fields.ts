// Schemas of the fields that many calls share: ids, labels, flags and channels.

import { Type } from "typebox";

/** Pattern of an id, as in `broker/ids`. `\p{Cs}` matches lone surrogates. */
export const ID_PATTERN = "^[^@#&\\p{Cc}\\p{Cs}]{1,128}$";
/** Pattern of a label such as `client_msg_no`: 1 to 128 characters, no lone surrogates. */
export const LABEL_PATTERN = "^\\P{Cs}{1,128}$";
export const WELL_FORMED_PATTERN = "^\\P{Cs}*$";
export const OPTIONAL_ID_PATTERN = "^[^@#&\\p{Cc}\\p{Cs}]{0,128}$";
/** An empty label has the same meaning as a missing label. */
export const OPTIONAL_LABEL_PATTERN = "^\\P{Cs}{0,128}$";

export const MAX_LOOKUP_UIDS = 10_000;
/** Latest time that a `Date` can represent, in Unix milliseconds. */
export const MAX_TIME_MS = 8_640_000_000_000_000;

export const LOBBY = { channel_id: "lobby", channel_type: 2 };

export const id = (description: string) => Type.String({ pattern: ID_PATTERN, description });
/**
 * Creates the schema of a flag. Client generators use `x-enum-varnames` to name the values of an
 * integer enumeration.
 */
export const flag = (description: string) =>
  Type.Enum([0, 1], {
    type: "integer",
    title: "Flag",
    description,
    examples: [1],
    "x-enum-varnames": ["OFF", "ON"],
  });
export const sendBan = flag(
  "1: no member may send. For a personal channel: its owner may not send",
);
export const deviceFlag = (description: string) =>
  Type.Enum([0, 1, 2], {
    type: "integer",
    title: "DeviceFlag",
    description,
    examples: [1],
    "x-enum-varnames": ["APP", "WEB", "DESKTOP"],
  });
export const deviceLevel = (description: string) =>
  Type.Enum([0, 1], {
    type: "integer",
    title: "DeviceLevel",
    description,
    examples: [1],
    "x-enum-varnames": ["SECONDARY", "MAIN"],
  });
export const uids = (
  description: string,
  maxItems: number,
  naming: { readonly title?: string; readonly examples?: string[][] } = {},
) => Type.Array(id("User id"), { maxItems, description, ...naming });

export const channelId = id("Channel id; for a personal channel, the uid of the user");
export const channelType = Type.Enum([1, 2], {
  type: "integer",
  title: "ChannelType",
  description: "1 personal channel, 2 group channel",
  examples: [2],
  "x-enum-varnames": ["PERSONAL", "GROUP"],
});
/** An empty uid has the same meaning as a missing uid. */
export const personUid = Type.String({
  pattern: OPTIONAL_ID_PATTERN,
  description: "User whose conversation with channel_id is read; required for a personal channel",
});
/** Cursor for a list that is read in pages, ordered by id. The cursor is the last id on a page. */
export const idCursor = Type.String({
  pattern: OPTIONAL_ID_PATTERN,
  description: "Value of cursor in the previous reply; empty or absent for the first page",
});
export const streamName = Type.String({
  pattern: LABEL_PATTERN,
  description: "Identifies the stream or message. All events of a stream have the same value",
});

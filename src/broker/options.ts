// The options of messages, streams and commands (sections `messages`, `content`, `streams`,
// `commands`). A schema only: no state, read by `config/` and by the documentation. Every key has a
// type, a default, a unit where it counts something, and a sentence.

import { Type } from "typebox";

/** Section `messages`: what a message may hold, to whom it may go, how much one call may read. */
export const messagesOptions = Type.Object(
  {
    maxPayloadBytes: Type.Integer({
      default: 65_536,
      minimum: 1,
      maximum: 8_388_608,
      unit: "bytes",
      description: "A message with a larger decoded payload is refused.",
    }),
    historyLimit: Type.Integer({
      default: 500,
      minimum: 1,
      maximum: 10_000,
      unit: "messages",
      description: "Most messages one history request returns.",
    }),
    friendsOnly: Type.Boolean({
      default: false,
      description:
        "A user receives personal messages, commands and events only from users on its allowlist (`/channel/whitelist_add` with its uid and `channel_type` 1), itself and the system. WuKongIM's `whitelistOffOfPerson` says the opposite: its false is true here.",
    }),
  },
  { additionalProperties: false },
);

/** Section `content`: what a message may say. */
export const contentOptions = Type.Object(
  {
    validation: Type.Enum(["json", "strict", "opaque"], {
      default: "json",
      description:
        "What a payload must be. `json`: a JSON object with an integer `type`; `strict`: also the fields of the known types; `opaque`: any bytes.",
    }),
  },
  { additionalProperties: false },
);

/** Section `streams`: live text and other events of a channel. */
export const streamsOptions = Type.Object(
  {
    idleTimeoutMs: Type.Integer({
      default: 60_000,
      minimum: 100,
      maximum: 86_400_000,
      unit: "milliseconds",
      description: "A stream without any event for so long ends as interrupted; its text is kept.",
    }),
    maxDataBytes: Type.Integer({
      default: 65_536,
      minimum: 1,
      maximum: 1_048_576,
      unit: "bytes",
      description: "An event with more data is refused.",
    }),
    maxStreamBytes: Type.Integer({
      default: 262_144,
      minimum: 1024,
      maximum: 16_777_216,
      unit: "bytes",
      description:
        "What all events of one stream take together when a viewer who joins is sent them at once: text as in JSON, tool calls with their ids and types; an event beyond is refused. Never more than a quarter of `client.maxBufferedBytes`, whatever is set here.",
    }),
    maxActiveBytes: Type.Integer({
      default: 268_435_456,
      minimum: 1_048_576,
      maximum: 17_179_869_184,
      unit: "bytes",
      description:
        "Memory that active streams take on this node, about; beyond it events are refused as overloaded.",
    }),
  },
  { additionalProperties: false },
);

/** Section `commands`: the inboxes of commands that no device has acknowledged yet. */
export const commandsOptions = Type.Object(
  {
    maxInbox: Type.Integer({
      default: 1000,
      minimum: 1,
      maximum: 1_000_000,
      unit: "commands",
      description: "Commands kept for one user; with one more the oldest leaves.",
    }),
    expireS: Type.Integer({
      default: 604_800,
      minimum: 1,
      maximum: 315_360_000,
      unit: "seconds",
      description:
        "A command that no device acknowledged for so long leaves the inbox, earlier if its own `expire` says so.",
    }),
  },
  { additionalProperties: false },
);

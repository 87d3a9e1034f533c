// The options of messages (sections `messages` and `content`). A schema only: no state, read by `config/` and by the documentation.
// Every key has a type, a default, a unit where it counts something, and a sentence.

import { Type } from "typebox";

/** Section `messages`: what a message may hold and how much history one call may read. */
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

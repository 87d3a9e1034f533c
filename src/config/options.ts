// The options that belong to the process and to no room (sections `node` and `drain`). A schema only: no state.

import { Type } from "typebox";

/** Section `node`: who this process is. */
export const nodeOptions = Type.Object(
  {
    id: Type.String({
      default: "",
      maxLength: 64,
      pattern: "^[A-Za-z0-9._-]*$",
      description:
        "Name of this node: letters, digits, `.`, `_`, `-`. Empty: a random one at each start.",
    }),
  },
  { additionalProperties: false },
);

/** Section `drain`: how the process ends. */
export const drainOptions = Type.Object(
  {
    noticeMs: Type.Integer({
      default: 0,
      minimum: 0,
      maximum: 600_000,
      unit: "milliseconds",
      description:
        "How long `/readyz` answers 503 while everything still works, before clients are told to go: a little more than the interval at which a load balancer asks.",
    }),
    timeoutMs: Type.Integer({
      default: 10_000,
      minimum: 0,
      maximum: 600_000,
      unit: "milliseconds",
      description:
        "On SIGTERM or SIGINT, the time given to clients to leave and to calls to finish before the rest is closed.",
    }),
  },
  { additionalProperties: false },
);

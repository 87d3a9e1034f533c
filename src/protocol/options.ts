// The options of wire formats (section `protocol`). A schema only: no state, read by `config/` and
// by the documentation.

import { Type } from "typebox";

/** Section `protocol`: how client sockets are spoken to. */
export const protocolOptions = Type.Object(
  {
    wkproto: Type.Object(
      {
        encryption: Type.Boolean({
          default: true,
          description:
            "Whether payloads are encrypted and signed for clients of WuKongIM's binary protocol. Their JavaScript SDK cannot connect without. Off: all members of a group share one encoded message, for clients that accept an empty server key. TLS protects more, either way.",
        }),
      },
      { additionalProperties: false },
    ),
  },
  { additionalProperties: false },
);

// Schema of the section `protocol` of the configuration: settings of the wire formats.

import { Type } from "typebox";

/** Section `protocol` of the configuration. */
export const protocolOptions = Type.Object(
  {
    wkproto: Type.Object(
      {
        encryption: Type.Boolean({
          default: true,
          description:
            "Whether payloads are encrypted and signed for clients of WuKongIM's binary protocol. WuKongIM's JavaScript SDK cannot connect without it. Without encryption all members of a group share one encoded message; this works with clients that accept an empty server key. In both cases TLS gives better protection.",
        }),
      },
      { additionalProperties: false },
    ),
  },
  { additionalProperties: false },
);

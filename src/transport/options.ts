// Schema of the section `sockets`: the limits of all sockets of a node. No state.

import { Type } from "typebox";

export const socketsOptions = Type.Object(
  {
    max: Type.Integer({
      default: 0,
      minimum: 0,
      maximum: 10_000_000,
      unit: "sockets",
      description:
        "Maximum number of sockets of both listeners: HTTP, client sockets, and connections that have not sent a request yet. Further connections are closed at once. With 0, or a value above what the system allows, the limit is the process's limit of open files minus a reserve for files and Redis.",
    }),
    maxUnauthenticatedPerAddress: Type.Integer({
      default: 256,
      minimum: 0,
      maximum: 10_000_000,
      unit: "sockets",
      description:
        "Maximum number of unauthenticated sockets of one client address (an IPv4 address or an IPv6 /64). Further connections are closed at once. The limit is at most half of the limit of all sockets. Behind a proxy all clients have the address of the proxy: raise this value, or set 0 (no limit) and limit connections at the proxy.",
    }),
  },
  { additionalProperties: false },
);

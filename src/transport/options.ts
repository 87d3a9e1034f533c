// Schema of the section `sockets`: limits of all sockets of a node. No state.

import { Type } from "typebox";

export const socketsOptions = Type.Object(
  {
    max: Type.Integer({
      default: 0,
      minimum: 0,
      maximum: 10_000_000,
      unit: "sockets",
      description:
        "Limit of sockets over both listeners: HTTP, client sockets, and connections without a request yet. Further ones are closed at once. 0, or more than the system allows: the process's limit of open files less a reserve for files and Redis.",
    }),
    maxUnauthenticatedPerAddress: Type.Integer({
      default: 256,
      minimum: 0,
      maximum: 10_000_000,
      unit: "sockets",
      description:
        "Limit of unauthenticated sockets of one client address (an IPv4 address, or an IPv6 network of 64 bits); further ones are closed at once. It never exceeds half of all sockets. Behind a proxy every client has the proxy's address: raise it, or set 0 (unlimited) and limit at the proxy.",
    }),
  },
  { additionalProperties: false },
);

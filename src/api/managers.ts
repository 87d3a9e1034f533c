// Login and logout of managers. Must never log or return a password.

import { type Static, Type } from "typebox";
import type { Managers } from "../broker/managers.ts";
import type { HttpRequest } from "../transport/types.ts";
import { LABEL_PATTERN, WELL_FORMED_PATTERN } from "./fields.ts";
import { bearerToken } from "./guard.ts";
import { jsonReply, okReply } from "./reply.ts";
import type { Outcome } from "./route.ts";

export const loginBody = Type.Object(
  {
    username: Type.String({ pattern: LABEL_PATTERN, description: "Name of the manager account" }),
    password: Type.String({
      minLength: 1,
      maxLength: 1024,
      pattern: WELL_FORMED_PATTERN,
      description: "Password of the account",
    }),
  },
  {
    title: "LoginRequest",
    description: "Name and password of a manager",
    examples: [{ username: "admin", password: "the-password" }],
  },
);

export function createManagerCalls(managers: Pick<Managers, "login" | "logout">) {
  return {
    async login({ username, password }: Static<typeof loginBody>, { remoteAddress }: HttpRequest) {
      const login = await managers.login(username, password, remoteAddress);
      const { account } = login;
      const body = {
        token: login.token,
        expire: login.expireS,
        user: {
          username: account.username,
          role: account.role,
          permissions: account.permissions,
        },
      };
      return jsonReply(JSON.stringify(body));
    },

    logout(request: HttpRequest): Outcome {
      // The guard has checked that the call has a valid access token.
      return managers.logout(bearerToken(request) ?? "").then(okReply);
    },
  };
}

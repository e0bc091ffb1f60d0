/** The one thing that the page has to ask: the token. */

import { useState } from "preact/hooks";
import { keepToken, sentence } from "../api/client";
import { enter } from "../state/live";

export function Login({ said }: { said: string | null }) {
  const [value, setValue] = useState("");
  const [error, setError] = useState<string | null>(said);
  const [busy, setBusy] = useState(false);
  const submit = async (event: Event) => {
    event.preventDefault();
    const secret = value.trim();
    if (!secret || busy) return;
    setBusy(true);
    keepToken(secret);
    try {
      await enter();
    } catch (reason) {
      keepToken(null);
      setError(sentence(reason));
    }
    setBusy(false);
  };
  return (
    <main class="login">
      <form class="card" onSubmit={submit}>
        <h1>
          <img src="/icon.svg" alt="" width={28} height={28} /> stretto
        </h1>
        <label>
          Token
          <input
            type="password"
            name="token"
            autocomplete="off"
            spellcheck={false}
            placeholder="st_…"
            value={value}
            aria-invalid={error !== null}
            aria-describedby="token-help"
            onInput={(event) => setValue(event.currentTarget.value)}
          />
        </label>
        {error && (
          <p class="error" role="alert">
            {error}
          </p>
        )}
        <button class="primary" disabled={busy || !value.trim()}>
          {busy ? "Checking …" : "Open"}
        </button>
        <p id="token-help" class="muted">
          <code>stretto serve</code> prints an address with a token in it, and keeps it in <code>login.json</code> in its home
          (<code>~/.stretto</code>). An administrator makes further ones. It stays in this tab only.
        </p>
      </form>
    </main>
  );
}

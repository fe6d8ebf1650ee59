"""A backend's side: open the customer's session and ask. It needs Clew without extras, and no model, tool or key.

python backend.py CUSTOMER QUESTION
"""

import asyncio
import sys

from clew import Clew


async def main(customer: str, question: str) -> None:
    """Ask the support agent in the customer's session, which exists from the first question on."""
    clew = await Clew.connect()
    session = await clew.open(f"support-{customer}", agent="support", metadata={"user": customer})
    print(await session.ask(question, on_busy="queue"))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
